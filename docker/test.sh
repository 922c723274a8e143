#!/bin/sh
# `make image-test`: the demo in the built image, and who gets in. IMAGE: its name. Says what failed, and exits 1.
set -eu
cd "$(dirname "$0")/.."
image=${IMAGE:-pg_mop} engine=$(docker/engine.sh) work=$(mktemp -d)
[ "$engine" != buildah ] || container=$(buildah from --pull-never "$image")
trap 'rm -rf "$work"; [ -z "${container-}" ] || buildah rm "$container" > /dev/null' EXIT

# in_image NAME=VALUE ... -- ARGUMENT ...: what a container of the image does with these arguments
in_image() {
    options=
    while [ "$1" != -- ]; do options="$options --env $1"; shift; done
    shift
    case $engine in
        buildah) buildah run $options "$container" -- tini -s -- entrypoint.sh "$@" ;;
        *) $engine run --rm $options "$image" "$@" ;;
    esac
}

fail() { echo "FAILED: $1"; cat "$work/out"; exit 1; }

leaderboard() { [ "$(grep -cE '^ +[0-9]+ \| +[0-9]+ \| (dense|cnn) ' "$work/out")" = 16 ]; }

in_image -- id -u > "$work/out"
[ "$(cat "$work/out")" = 999 ] || fail 'the image does not run as the user postgres'

! in_image -- serve > "$work/out" 2>&1 || fail 'a server without a password starts'
grep -q 'POSTGRES_PASSWORD' "$work/out" || fail 'the refusal does not name POSTGRES_PASSWORD'

in_image POSTGRES_PASSWORD=right PGPORT=54329 -- sh -c '
    entrypoint.sh serve & server=$!
    until [ "$(PGPASSWORD=right psql -h 127.0.0.1 -U postgres -Atc "SELECT extname FROM pg_extension WHERE extname ~ \$\$pg_mop\$\$")" = pg_mop ]; do
        kill -0 $server && sleep 1
    done 2> /dev/null
    pg_isready && echo ready
    PGPASSWORD=wrong psql -h 127.0.0.1 -U postgres -c "SELECT 1" || echo "refused"
    tr "\0" "\n" < /proc/$server/environ | grep right || echo "not in the environment"
    grep -r right $PGDATA/*.conf || echo "not in a file"
    kill -INT $server; wait $server && echo "ended well"
' > "$work/out" 2>&1 || fail 'the server'
for claim in ready refused 'not in the environment' 'not in a file' 'ended well'; do
    grep -qx "$claim" "$work/out" || fail "the server with a password is not \"$claim\""
done

in_image -- demo > "$work/out" 2>&1 || fail 'the demo'
leaderboard || fail 'the demo shows no leaderboard of 16'
sed -n '/The leaderboard/,/^$/p' "$work/out"

# the servers of compose.cluster.yaml, all in one container
in_image POSTGRES_PASSWORD=right -- sh -c '
    data=$PGDATA
    for n in 1 2 3; do PGDATA=$data.w$n entrypoint.sh serve -p 5433$n & servers="${servers-} $!"; done
    PGDATA=$data.c PG_MOP_SERVERS="w1=127.0.0.1:54331 w2=127.0.0.1:54332 w3=127.0.0.1:54333" \
        entrypoint.sh serve -p 54330 & servers="$servers $!"
    export PGHOST=127.0.0.1 PGPORT=54330 PGUSER=postgres PGPASSWORD=$POSTGRES_PASSWORD
    for port in 54331 54332 54333 54330; do until pg_isready -q -p $port; do sleep 1; done; done
    entrypoint.sh demo -v segments=3
    psql -XAtc "SELECT DISTINCT \$\$segment on \$\$ || server FROM madlib.mop_segment"
    grep -r right $data.*/*.conf || echo "not in a file"
    kill -INT $servers; wait
' > "$work/out" 2>&1 || fail 'the cluster'
for claim in 'segment on w1' 'segment on w2' 'segment on w3' 'not in a file'; do
    grep -qx "$claim" "$work/out" || fail "of the cluster: not \"$claim\""
done
leaderboard || fail 'no leaderboard of 16 in the cluster'
echo '5 passed, 0 failed'
