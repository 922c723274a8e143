#!/bin/sh
# Run a command as a user that PostgreSQL accepts: the present user, or `postgres` if the present user is root.
set -eu
tree=$(cd "$(dirname "$0")/.." && pwd)
if [ "$(id -u)" = 0 ]; then
    if ! runuser -u postgres -- test -r "$tree/Makefile"; then
        echo "the user postgres cannot read $tree: PostgreSQL does not run as root, so clone where that user" \
             "can read (such as /srv), or: chmod o+x every directory above" >&2
        exit 1
    fi
    # (runuser would kill the command two seconds after a SIGTERM, before the tests have ended their servers)
    exec setpriv --reuid=postgres --regid=postgres --init-groups -- "$@"
fi
exec "$@"
