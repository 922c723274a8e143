#!/bin/sh
# The checkout's embedded PostgreSQL: server.sh start | stop | psql [args] | dsn
#
# Its database demo has the extension of this checkout, by default in the schema madlib. All files are under .local: data/
# (the cluster), port, password. Only the server's user can open the socket's directory, and needs no password there. On
# the loopback address, the server requires the password.
set -eu
cd "$(dirname "$0")/.."
local=$PWD/.local data=$PWD/.local/data
run=$PWD/tools/as_server_user.sh
database=demo

# the path of a socket has at most 107 bytes
socket=$local/socket
[ "$(printf %s "$socket/.s.PGSQL.65535" | wc -c)" -lt 104 ] || socket=/tmp/pg_mop-$(printf %s "$PWD" | cksum | cut -d' ' -f1)

client() { echo "$(tools/postgres.sh bin)/psql"; }
running() { [ -f "$data/postmaster.pid" ] && $run "$(cat "$local/bindir")/pg_ctl" -D "$data" status > /dev/null 2>&1; }

# The port of the last start or, from 54320, the first one that is free and none of those tried: $1
free_port() {
    /usr/bin/python3 -c '
import socket
import sys
tried, last = map(str.split, sys.argv[1:])
for port in [*map(int, last), *range(54320, 54420)]:
    if str(port) in tried:
        continue
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            continue
    print(port)
    break' "$1" "$(cat "$local/port" 2> /dev/null)"
}

start() {
    bin=$(cat "$local/bindir")
    now=$("$bin/postgres" -V | sed 's/[^0-9]*\([0-9]*\).*/\1/') was=$(cat "$data/PG_VERSION" 2> /dev/null || true)
    if [ "${was:-$now}" != "$now" ]; then
        echo ".local/data is a cluster of PostgreSQL $was, and this is PostgreSQL $now: make start PG=$was, or" \
             'make clean, which removes it' >&2
        exit 1
    fi
    if ! [ -f "$data/PG_VERSION" ]; then
        umask 077
        user=$($run id -un) group=$($run id -gn)
        install -d -m 700 -o "$user" -g "$group" "$data"
        /usr/bin/python3 -c 'import secrets; print(secrets.token_urlsafe(24))' > "$local/password"
        chown "$user" "$local/password"
        $run "$bin/initdb" -D "$data" -U postgres -E UTF8 --locale=C.UTF-8 --auth-local=trust \
            --auth-host=scram-sha-256 --pwfile="$local/password" > "$local/initdb.log"
    fi
    if ! running; then
        install -d -m 700 -o "$($run id -un)" -g "$($run id -gn)" "$socket"
        # the port of the last start, if it is still free; the next free one where another server takes it meanwhile
        tried='' begun=false
        while ! $begun; do
            port=$(free_port "$tried")
            [ -n "$port" ] || { echo 'no port from 54320 to 54419 is free' >&2; exit 1; }
            echo "$port" > "$local/port"
            at=$(($({ wc -c < "$data/server.log"; } 2> /dev/null || echo 0) + 1))
            if said=$($run "$bin/pg_ctl" -D "$data" -l "$data/server.log" -w -t 60 start 2>&1 > /dev/null \
                -o "-p $port -c listen_addresses=127.0.0.1 -k '$socket'"); then
                begun=true
            elif tail -c "+$at" "$data/server.log" | grep -q 'could not bind .*127\.0\.0\.1'; then
                tried="$tried $port"
            else
                echo "$said" >&2
                tail -n 20 "$data/server.log" >&2
                exit 1
            fi
        done
    fi
    query() { $run "$(client)" -X -h "$socket" -p "$(cat "$local/port")" -U postgres -qAt "$@"; }
    [ -n "$(query -d postgres -c "SELECT 1 FROM pg_database WHERE datname = '$database'")" ] \
        || query -d postgres -c "CREATE DATABASE $database"
    set_up() { query -d "$database" -v ON_ERROR_STOP=1 -c 'SET client_min_messages = warning' "$@"; }
    if [ -z "$(query -d "$database" -c "SELECT 1 FROM pg_extension WHERE extname = 'pg_mop'")" ]; then
        set_up -c 'CREATE SCHEMA IF NOT EXISTS madlib' -c 'CREATE EXTENSION pg_mop SCHEMA madlib CASCADE'
    else
        set_up -c 'ALTER EXTENSION pg_mop UPDATE' || echo "the extension in the database $database stays as it is" >&2
    fi
}

need_server() { running || { echo 'the embedded server is not running: make start' >&2; exit 1; }; }

case ${1-} in
    start) start ;;
    stop) if running; then $run "$(cat "$local/bindir")/pg_ctl" -D "$data" -m fast -w stop > /dev/null; fi ;;
    psql) need_server; shift
          exec "$run" "$(client)" -h "$socket" -p "$(cat "$local/port")" -U postgres -d $database "$@" ;;
    dsn) [ -f "$local/port" ] || { echo 'there is no embedded server yet: make start' >&2; exit 1; }
         echo "postgresql://postgres:$(cat "$local/password")@127.0.0.1:$(cat "$local/port")/$database" ;;
    *) sed -n 2p "$0" >&2; exit 2 ;;
esac
