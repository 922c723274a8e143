#!/bin/sh
# A whole demo: install what is missing, start the embedded server, run the SQL; says how long each step took.
# `run.sh`: demo.sql, arrays; `run.sh table`: table.sql, a table with columns of all kinds; `run.sh space`: space.sql, a search
# over a space of models.
set -eu
cd "$(dirname "$0")/.."
demo=${1:-demo}
now() { date +%s.%N; }
began=$(now)
step() {
    title=$1; shift; start=$(now)
    "$@"
    printf '[%s: %.1f s]\n' "$title" "$(echo "$(now) - $start" | awk '{print $1 - $3}')"
}
step 'Debian packages' make -s debian
step 'Python packages' make -s packages
if [ "$demo" = table ]; then step "the demo's data" tools/packages.sh .local/venv/bin/python --editable '.[demo-table,baseline]'; fi
step 'the embedded server' make -s start
step 'the main job' tools/server.sh psql -X -f "$PWD/demo/$demo.sql"
printf '[all: %.1f s]\n' "$(echo "$(now) - $began" | awk '{print $1 - $3}')"
cat <<'END'

The server goes on running. To look around:
    make psql                                 psql, here
    psql "$(make -s dsn)"                     the same from anywhere on this machine
END
if [ "$demo" = table ]; then cat <<'END'
Try:
    TABLE churn;                              the versions of the model, with their measures and statements
    SELECT madlib.mop_retrain('churn', warm => true);           another version, in use only if it is better
    SELECT * FROM madlib.mop_feature_info('churn');             what became of each column
    SELECT madlib.mop_train();                help;  ('example') gives a script
    make demo                                 arrays, and configurations of your own
END
elif [ "$demo" = space ]; then cat <<'END'
Try:
    SELECT mst_key, parent, changed, inherited FROM madlib.mop_lineage;      who was made from whom
    SELECT madlib.mop_space_show('digit_space');                the space, with its choice points
    SELECT madlib.mop_search();               help;  ('example') gives a script
END
else cat <<'END'
Try:
    TABLE madlib.mop_runs;                    every run;  madlib.mop_progress, mop_units, mop_visit_order
    TABLE digits_models_summary;              what MADlib's users expect to find
    SELECT madlib.madlib_keras_fit_multiple_model();            help;  ('example') gives a script
    SET pg_mop.scheduler = 'round-robin';     then train again, as MADlib does
    make demo-table                           a table with columns of all kinds
END
fi
echo 'make stop ends the server, make clean removes .local.'
