#!/bin/sh
# The benchmark, in a separate database of the embedded server: run.sh [WORKLOAD | search ...]; RUNS=1 for a quick run.
set -eu
export PGOPTIONS='-c client_min_messages=warning'
cd "$(dirname "$0")/.."
if [ "$*" = servers ]; then  # it makes its own
    exec tools/as_server_user.sh .local/venv/bin/python -B benchmarks/servers.py --runs "${RUNS:-3}"
elif [ "${1:-}" = greenplum ]; then  # one of PG_MOP_GREENPLUM, beside a PostgreSQL of its own: run.sh greenplum [WORKLOAD]
    shift
    exec tools/as_server_user.sh env PG_MOP_GREENPLUM="$PG_MOP_GREENPLUM" .local/venv/bin/python -B \
        benchmarks/on_greenplum.py --runs "${RUNS:-3}" "$@"
fi
tools/server.sh psql -d postgres -qX -c 'DROP DATABASE IF EXISTS benchmark' -c 'CREATE DATABASE benchmark'
tools/server.sh psql -d benchmark -qX -c 'CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE'
user=$(tools/as_server_user.sh id -un)
install -d -o "$user" .local/bench
dsn=$(tools/server.sh dsn)
if [ "${1:-}" = explain ]; then  # mop_explain's predictions: run.sh explain [WORKLOAD ...]
    shift
    tools/as_server_user.sh .local/venv/bin/python -B benchmarks/explain.py "${dsn%/*}/benchmark" "$@"
    .local/venv/bin/python -B benchmarks/report.py
    tools/server.sh psql -d postgres -qX -c 'DROP DATABASE benchmark WITH (FORCE)'
    exit
fi
if [ "${1:-}" = answers ]; then  # how fast models answer: run.sh answers [SECONDS of the forty connections]
    shift
    tools/as_server_user.sh env PYTHONPATH=client .local/venv/bin/python -B benchmarks/answers.py "${dsn%/*}/benchmark" "$@"
    .local/venv/bin/python -B benchmarks/report.py
    tools/server.sh psql -d postgres -qX -c 'DROP DATABASE benchmark WITH (FORCE)'
    exit
fi
tools/as_server_user.sh .local/venv/bin/python -B benchmarks/run.py --runs "${RUNS:-3}" "${dsn%/*}/benchmark" "$@" \
    || failed=$?  # losses that differ, for one: the other figures are kept
[ $# -gt 0 ] || tools/as_server_user.sh .local/venv/bin/python -B benchmarks/parts.py "${dsn%/*}/benchmark"
case " $* " in *' search '*)
    echo 'What procedures and schedulers cost, simulated:'
    for part in planning scheduling; do PYTHONPATH=plpy_modules:. .local/venv/bin/python -B benchmarks/$part.py; done
esac
if [ -f .local/bench/results.json ]; then  # (with --only nothing is kept)
    .local/venv/bin/python -B benchmarks/report.py
    echo 'docs/benchmarks.md has all figures.'
fi
tools/server.sh psql -d postgres -qX -c 'DROP DATABASE benchmark WITH (FORCE)'
exit "${failed:-0}"
