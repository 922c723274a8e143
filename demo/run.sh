#!/bin/sh
# The whole demo: install what is missing, start the embedded server, run demo.sql; says how long each step took.
set -eu
cd "$(dirname "$0")/.."
now() { date +%s.%N; }
began=$(now)
step() {
    title=$1; shift; start=$(now)
    "$@"
    printf '[%s: %.1f s]\n' "$title" "$(echo "$(now) - $start" | awk '{print $1 - $3}')"
}
step 'Debian packages' make -s debian
step 'Python packages' make -s packages
step 'the embedded server' make -s start
step 'the main job' tools/server.sh psql -X -f "$PWD/demo/demo.sql"
printf '[all: %.1f s]\n' "$(echo "$(now) - $began" | awk '{print $1 - $3}')"
cat <<'END'

The server goes on running. To look around:
    make psql                                 psql, here
    psql "$(make -s dsn)"                     the same from anywhere on this machine
Try:
    TABLE madlib.mop_runs;                    every run;  madlib.mop_progress, mop_units, mop_visit_order
    TABLE digits_models_summary;              what MADlib's users expect to find
    SELECT madlib.madlib_keras_fit_multiple_model();            help;  ('example') gives a script
    SET pg_mop.scheduler = 'round-robin';     then train again, as MADlib does
make stop ends the server, make clean removes .local.
END
