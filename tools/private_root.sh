#!/bin/sh
# Make (once) a private copy of PostgreSQL's programs under $1 and print its program directory.
#
# PostgreSQL finds its files relative to the running program. So a copied `postgres`, with links to the system's
# libraries and with a separate share directory, reads the extensions of that share directory. The extension of this
# checkout is then visible only to this checkout's servers, and the system's PostgreSQL stays unchanged.
set -eu
root=$1
bin=$("$(dirname "$0")/postgres.sh" bin)
config=$bin/pg_config
share=$($config --sharedir) lib=$($config --pkglibdir)
if ! [ -x "$root$bin/postgres" ] || [ "$bin/postgres" -nt "$root$bin/postgres" ]; then
    rm -rf "$root$bin" "$root$share" "$root$lib"
    mkdir -p "$root$bin" "$root$share/extension"
    cp "$bin/postgres" "$bin/pg_ctl" "$bin/initdb" "$bin/pg_config" "$root$bin/"
    ln -s "$lib" "$root$lib"
    for file in "$share"/*; do
        [ "$file" = "$share/extension" ] || ln -s "$file" "$root$share/"
    done
fi
for file in "$share"/extension/*; do
    case $file in */pg_mop[.-]*) continue ;; esac
    ln -sf "$file" "$root$share/extension/"
done
echo "$root$bin"
