#!/bin/sh
# Install missing Debian packages: those of the embedded server, and those named as arguments.
set -eu
cd "$(dirname "$0")/.."
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
# (a new system may have no list of packages yet)
postgres=$(tools/postgres.sh packages 2> /dev/null) || { $sudo apt-get update -qq; postgres=$(tools/postgres.sh packages); }
missing=
# (libgomp1: LightGBM's wheel needs it)
for package in $postgres python3-venv libgomp1 "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "installing$missing"
$sudo apt-get update -qq
for package in $missing; do
    apt-cache show "$package" > /dev/null 2>&1 || {
        echo "apt has no package $package; of PostgreSQL it has: $(
            apt-cache search --names-only '^postgresql-plpython3-[0-9]+$' | sed 's/ .*//' | tr '\n' ' ')" >&2
        exit 1
    }
done
# prevents the package from creating and starting a cluster of the system
$sudo sh -c "
    export DEBIAN_FRONTEND=noninteractive
    if ! [ -e /etc/postgresql-common/createcluster.conf ]; then
        mkdir -p /etc/postgresql-common
        echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
    fi
    apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-confold $missing > /dev/null
"
