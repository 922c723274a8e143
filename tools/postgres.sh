#!/bin/sh
# The PostgreSQL for this checkout: postgres.sh version | bin | pg_config | packages [dev]
#
# The environment variable PG is its major version. Without PG, it is the newest installed version with PL/Python, or, if
# none is installed, the newest version with PL/Python that apt knows. No other file names a version.
#   version    the major version
#   bin        the directory of its programs, which must be installed
#   pg_config  the pg_config of this version, or of the newest installed version, or of the PATH
#   packages   the Debian packages of a server with PL/Python; dev: also the packages for `make install`
set -eu
fail() { echo "$1" >&2; exit 1; }

# the installed major versions with a file $1 in their directory, one per line
installed() {
    for file in /usr/lib/postgresql/*/"$1"; do
        [ -e "$file" ] || continue
        number=${file#/usr/lib/postgresql/}
        echo "${number%%/*}"
    done
}

newest() { grep -E '^[0-9]+$' | sort -n | tail -n 1; }

version() {
    case ${PG-} in
        '') ;;
        *[!0-9]*) fail "PG must be a major version of PostgreSQL, not $PG" ;;
        *) echo "$PG"; return ;;
    esac
    number=$(installed lib/plpython3.so | newest)
    [ -n "$number" ] || number=$(apt-cache search --names-only '^postgresql-plpython3-[0-9]+$' 2> /dev/null \
        | sed -n 's/^postgresql-plpython3-\([0-9]*\) .*/\1/p' | newest)
    [ -n "$number" ] || fail 'no PostgreSQL with PL/Python is installed, and apt knows of none: apt-get update'
    echo "$number"
}

case ${1-} in
    version) version ;;
    bin)
        number=$(version)
        [ -x "/usr/lib/postgresql/$number/bin/postgres" ] || fail "PostgreSQL $number is not installed: make debian PG=$number"
        echo "/usr/lib/postgresql/$number/bin" ;;
    pg_config)
        number=${PG:-$(installed lib/plpython3.so | newest)}
        [ -n "$number" ] || number=$(installed bin/pg_config | newest)
        if [ -n "$number" ]; then echo "/usr/lib/postgresql/$number/bin/pg_config"; else echo pg_config; fi ;;
    packages)
        number=$(version)
        echo "postgresql-$number postgresql-plpython3-$number${2:+ postgresql-server-dev-$number python3-venv}" ;;
    *) sed -n 2p "$0" >&2; exit 2 ;;
esac
