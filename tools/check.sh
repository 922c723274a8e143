#!/bin/sh
# `make check`: a slice of every suite that needs a server, and beside it, on the other core, the unit tests.
# check.sh COMMAND ...: the command that is pytest
set -eu
units=$(mktemp)
"$@" tests/unit > "$units" 2>&1 & pid=$!
trap 'kill $pid 2> /dev/null || true; rm -f "$units"' EXIT
trap 'exit 130' INT TERM
status=0
"$@" -m slice || status=$?
wait $pid || status=$?
cat "$units"
exit $status
