#!/bin/sh
# What a container does: serve [postgres' options], demo, or any command.
#
# serve: PostgreSQL on the data of the volume. An empty volume gets a cluster, and the database POSTGRES_DB (default
# postgres) the extension in the schema madlib. POSTGRES_PASSWORD, or a file that POSTGRES_PASSWORD_FILE names, is the
# password of the role postgres. TCP asks everybody for a password; the socket is for the container's own user alone,
# whose worker sessions come in by it as the calling role. PG_MOP_SOCKET_ONLY=1: no password, and no TCP.
# PG_MOP_SERVERS: 'w1 w2=host:5433': other such servers, with the same password and database, over which new packed tables
# are dealt out (pg_mop.servers); they need not be there yet.
# demo [psql's options]: demo.sql on the server that PGHOST names; without it on a server of its own, which nobody else
# can reach and which is removed in the end.
# PGDATA: where the cluster is; by default a directory of the volume that is called as the major version.
set -eu
database=${POSTGRES_DB:-postgres} volume=/var/lib/postgresql/data
number=$(postgres -V | sed 's/[^0-9]*\([0-9]*\).*/\1/')
export PGDATA="${PGDATA:-$volume/$number}"

say() { echo "pg_mop: $*" >&2; }
fail() { say "$1"; [ -z "${2-}" ] || say "HINT: $2"; exit 1; }

# a cluster at $1, whose role postgres has the password in the file $2, or none
make_cluster() {
    initdb -D "$1" -U postgres -E UTF8 --locale=C.UTF-8 --auth-local=trust --auth-host=scram-sha-256 \
        ${2:+"--pwfile=$2"} > /dev/null
    echo 'host all all all scram-sha-256' >> "$1/pg_hba.conf"
    printf '%s\n' "listen_addresses = '*'" 'unix_socket_permissions = 0700' >> "$1/postgresql.conf"
}

# run a command beside a server on the cluster $1 whose only door is the socket directory $2
beside_server() {
    cluster=$1 sockets=$2; shift 2
    pg_ctl -D "$cluster" -s -w -t 120 -l "$sockets/log" -o "-c listen_addresses='' -k '$sockets'" start \
        || { cat "$sockets/log" >&2; return 1; }
    status=0
    PGHOST=$sockets PGUSER=postgres "$@" || status=$?
    pg_ctl -D "$cluster" -s -w -m fast stop
    return "$status"
}

# psql for a set-up, in the database POSTGRES_DB
set_up() { psql -X -q -v ON_ERROR_STOP=1 -d "$database" "$@"; }

make_extension() {
    [ "$database" = postgres ] || createdb -- "$database"
    set_up -c 'SET client_min_messages = warning' -c 'CREATE SCHEMA madlib' \
        -c 'CREATE EXTENSION pg_mop SCHEMA madlib CASCADE'
}

# the other servers of PG_MOP_SERVERS, and the way to them; the password is in no argument and in no log
make_servers() {
    names=
    for server in $PG_MOP_SERVERS; do
        name=${server%%=*} place=${server#*=}
        case $place in *:*) port=${place##*:} ;; *) port=5432 ;; esac
        set_up -v name="$name" -v host="${place%:*}" -v port="$port" -v database="$database" <<'SQL' || return
SET client_min_messages = warning;
SET log_statement = none;
SET log_min_error_statement = panic;
\getenv password PASSWORD
CREATE EXTENSION IF NOT EXISTS postgres_fdw;
CREATE SERVER :"name" FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host :'host', port :'port', dbname :'database');
CREATE USER MAPPING FOR postgres SERVER :"name" OPTIONS (user 'postgres', password :'password');
SQL
        names="$names${names:+, }$name"
    done
    set_up -v names="$names" -v database="$database" <<'SQL' || return
ALTER DATABASE :"database" SET pg_mop.servers = :'names';
SQL
}

# the volume's cluster comes into its place when it is complete
prepare() {
    umask 077
    new=$PGDATA.new work=$(mktemp -d)
    rm -rf "$new"
    if [ -n "${POSTGRES_PASSWORD_FILE-}" ]; then
        [ -z "${POSTGRES_PASSWORD-}" ] || fail 'both POSTGRES_PASSWORD and POSTGRES_PASSWORD_FILE are set'
        POSTGRES_PASSWORD=$(cat "$POSTGRES_PASSWORD_FILE")
    fi
    if [ -n "${POSTGRES_PASSWORD-}" ]; then
        printf '%s\n' "$POSTGRES_PASSWORD" > "$work/password"
    elif [ -z "${PG_MOP_SOCKET_ONLY-}" ]; then
        fail 'there is no password for the role postgres' \
            'set POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE, or PG_MOP_SOCKET_ONLY=1 to do without TCP'
    fi
    password=$work/password secret=${POSTGRES_PASSWORD-}
    [ -f "$password" ] || password=
    [ "$secret" = "$(printf '%s' "$secret" | head -n 1)" ] || fail 'the password has several lines'
    unset POSTGRES_PASSWORD
    make_cluster "$new" "$password"
    [ -z "$password" ] || rm "$password"
    beside_server "$new" "$work" make_extension
    if [ -n "${PG_MOP_SERVERS-}" ]; then
        [ -n "$password" ] || fail 'PG_MOP_SERVERS needs a password' 'set POSTGRES_PASSWORD, the same for all servers'
        PASSWORD=$secret beside_server "$new" "$work" make_servers
    fi
    mv "$new" "$PGDATA"
    rm -rf "$work"
}

demo() {
    if [ -n "${PGHOST-}" ]; then
        case $* in *again=*) ;; *) [ "$(psql -XAtc "SELECT count(*) FROM pg_class WHERE relname LIKE 'digits%'")" = 0 ] ||
            fail "there are tables called digits... on $PGHOST" 'demo -v again=1 replaces them' ;;
        esac
        psql -X -v keep=1 "$@" -f demo/demo.sql
        return
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    make_cluster "$work/data" ''
    beside_server "$work/data" "$work" psql -X -d postgres "$@" -f demo/demo.sql
}

[ "$(id -u)" != 0 ] || fail 'PostgreSQL does not run as root' 'leave the user of the image as it is'
case ${1-serve} in
    demo) shift; demo "$@"; exit ;;
    serve) [ $# = 0 ] || shift ;;
    -*) ;;
    *) exec "$@" ;;
esac
if ! [ -s "$PGDATA/PG_VERSION" ]; then
    # an empty cluster beside one of another version would look as if everything were lost
    for other in "$volume"/[0-9][0-9]/PG_VERSION; do
        [ "$PGDATA" != "$volume/$number" ] || ! [ -s "$other" ] || fail \
            "the volume has a cluster of PostgreSQL $(cat "$other"), and this image has PostgreSQL $number" \
            'dump it by an image of that version (make image PG=...) and restore it into a new volume; or name PGDATA'
    done
    prepare
fi
unset POSTGRES_PASSWORD POSTGRES_PASSWORD_FILE
exec postgres -D "$PGDATA" ${PG_MOP_SOCKET_ONLY:+-c listen_addresses=} "$@"
