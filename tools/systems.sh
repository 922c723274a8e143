#!/bin/sh
# Test this checkout on another Debian: systems.sh [SUITE], by default trixie. It must run as root.
#
# The system is made once by debootstrap in SYSTEMS/SUITE (4 GB with everything), and kept. The end of this script ends all
# mounts and processes in it. The script prints the result of each step; its status is 1 if a step failed.
# PG: the PostgreSQL version, by default the suite's; STEPS: some of demo, check, suites; SUITES: tests of the last step.
# MIRROR: the source, by default this machine's mirror of Debian; a mirror that ends in /ubuntu is Ubuntu's:
#   make test-systems SYSTEM=noble MIRROR=<a mirror of Ubuntu>/ubuntu
set -eu
cd "$(dirname "$0")/.."
tree=$PWD suite=${1:-trixie} systems=${SYSTEMS:-/srv/systems}
root=$systems/$suite
cannot() { echo "not run on $suite: $1" >&2; exit 1; }
[ "$(id -u)" = 0 ] || cannot 'only root can make another system (sudo make test-systems)'
if [ -z "${IN_NAMESPACE-}" ]; then
    command -v debootstrap > /dev/null || cannot 'there is no debootstrap (apt-get install debootstrap)'
    unshare --mount --pid --fork true 2> /dev/null || cannot 'mounting is not allowed here'
    IN_NAMESPACE=1 exec unshare --mount --pid --fork --kill-child "$0" "$suite"
fi

# --- the system ---------------------------------------------------------------------------------
mirror=${MIRROR:-$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2> /dev/null \
    | sed -nE 's,^(URIs:|deb( \[[^]]*\])?) *(https?://[^ ]*/debian)/?( .*)?$,\3,p' | head -n 1)}
[ -n "$mirror" ] || cannot 'no mirror of Debian is known here (MIRROR=...)'
if ! [ -e "$root/made" ]; then
    # debootstrap makes a suite that it does not know like another suite
    case $mirror in
        */ubuntu)
            like=gutsy components=main,universe keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg
            [ -e $keyring ] || cannot "there is no $keyring (the package ubuntu-keyring of Debian 13 has it)" ;;
        *) like=sid components=main keyring= ;;
    esac
    [ ! -e "/usr/share/debootstrap/scripts/$suite" ] || like=
    echo "making $suite in $root"
    mkdir -p "$systems"
    debootstrap --variant=minbase --include=ca-certificates,make,sudo,procps,python3 --components=$components \
        ${keyring:+--keyring=$keyring} "$suite" "$root" "$mirror" $like > "$systems/$suite.log" 2>&1 \
        || { tail -n 5 "$systems/$suite.log" >&2; cannot "debootstrap failed ($systems/$suite.log)"; }
    touch "$root/made"
fi
exec 9> "$systems/$suite.lock"
flock -n 9 || cannot 'it is being tried already'
mount --bind "$root" "$root"
mount -t proc none "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
# copies this machine's settings for network, apt and pip, with the certificates and directories in these settings
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
apt-config dump | grep -E '^Acquire::(Check-|Retries|https?::)' > "$root/etc/apt/apt.conf.d/99host" || true
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
for file in /etc/pip.conf /etc/xdg/pip/pip.conf /etc/xdg/pip/constraints.txt "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; do
    [ -e "$file" ] && install -D -m 644 "$file" "$root$file"
done
for place in $({ env | grep '^PIP_'; /usr/bin/python3 -m pip config list 2> /dev/null; } | tr "='\" " '\n\n\n\n' \
               | sed -nE 's,^(file://)?(/.*),\2,; s,/simple/?$,,p; t; /^\//p' | sort -u); do
    [ -d "$place" ] && mkdir -p "$root$place" && mount --bind -o ro "$place" "$root$place"
done

# the present checkout without its build outputs; build outputs of the other system stay
into=$root/srv/pg_mop
mkdir -p "$into"
find "$into" -mindepth 1 -maxdepth 1 ! -name .local -exec rm -rf {} +
tar -C "$tree" --exclude=./.git --exclude=./.local --exclude=./build --exclude=__pycache__ --exclude='*.egg-info' -cf - . \
    | tar -C "$into" --no-same-owner --touch -xf -

# --- the steps ----------------------------------------------------------------------------------
# (tests make user namespaces, which Linux forbids in a chroot: so pivot_root makes the system the root itself)
inside() {
    unshare --mount sh -c 'cd "$1" && pivot_root . mnt && umount -l mnt && cd /srv/pg_mop && exec /usr/bin/env -u MAKEFLAGS -u MAKELEVEL \
        HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin ${PG:+PG=$PG} sh -c "$2"' sh "$root" "$1"
}
SUITES=${SUITES:-tests/sql/test_fit_multiple.py tests/sql/test_train.py tests/security/test_definers.py tests/security/test_roles.py tests/living tests/upgrade}
failed=0 said=
for step in ${STEPS:-demo check suites}; do
    case $step in
        demo) command='make demo && make stop' ;;
        check) command='make check' ;;
        suites) command="make -s start && make -s stop && tools/as_server_user.sh .local/venv/bin/python -B -m pytest -q $SUITES" ;;
        *) cannot "there is no step $step" ;;
    esac
    echo "== $suite: $step"
    if inside "$command" > "$systems/$suite-$step.log" 2>&1; then came=passed; else came=FAILED failed=1; fi
    tail -n 3 "$systems/$suite-$step.log"
    said="$said
$step: $came, $(grep -E '^(=+ )?[0-9]+ (passed|failed|error)|^\[all' "$systems/$suite-$step.log" | tail -n 1 | tr -d =) ($systems/$suite-$step.log)"
done
echo "== $suite, PostgreSQL $(inside tools/postgres.sh\ version), $(inside '/usr/bin/python3 -V'), $(
    inside '.local/venv/bin/pip list 2> /dev/null' | grep -E '^(keras|tensorflow|tensorflow.cpu) ' | tr -s ' \n' ' ')$said"
exit $failed
