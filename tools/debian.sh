#!/bin/sh
# Install the Debian packages that the embedded server needs, and those named as arguments, where they are missing.
set -eu
missing=
for package in postgresql-15 postgresql-plpython3-15 python3-venv "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing$missing"
# the package would create and start a cluster of the system's: not wanted here
$sudo sh -c "
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    if ! [ -e /etc/postgresql-common/createcluster.conf ]; then
        mkdir -p /etc/postgresql-common
        echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
    fi
    apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-confold $missing > /dev/null
"
