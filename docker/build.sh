#!/bin/sh
# Build the image, by whichever of docker, podman and buildah works here: build.sh [the builder's options]
#
# IMAGE: its name; BASE: the image that it begins with, a Debian; PG: the major version of its PostgreSQL, if not the one
# that the Debian has.
set -eu
cd "$(dirname "$0")/.."
engine=$(docker/engine.sh)
case $engine in
    docker) set -- docker build "$@" ;;
    podman) set -- podman build --format docker "$@" ;;  # the OCI's format has no HEALTHCHECK
    buildah) set -- buildah build --format docker --layers "$@" ;;
esac
echo "building ${IMAGE:-pg_mop} by $engine"
exec "$@" --tag "${IMAGE:-pg_mop}" --build-arg BASE="${BASE:-debian:bookworm-slim}" \
    --build-arg PG="${PG-}" --file docker/Dockerfile .
