"""The family tree of the last search as a picture: family.py <dsn> <file>."""

import sys

import matplotlib

matplotlib.use("Agg")

from pg_mop_client import Selection  # noqa: E402 (after the choice of a backend without windows)

with Selection(sys.argv[1], progress=False) as selection:
    run = selection.query("SELECT max(run_id) AS run_id FROM madlib.mop_lineage")["run_id"][0]
    selection.run(int(run)).plot_family().figure.savefig(sys.argv[2], dpi=120)
print(f"the family tree of run {run}: {sys.argv[2]}")
