#!/bin/sh
# The handwritten digits as CSV, for demo.sql: from the file beside this one, or else from the checkout's packages.
set -eu
cd "$(dirname "$0")"
if [ -f digits.csv ]; then cat digits.csv; else ../.local/venv/bin/python digits.py; fi
