"""gpu_configuration: a table of this server's GPUs (docs/contract/fit_evaluate_predict.md, section 5)."""

import subprocess

from pg_mop.backend import program
from pg_mop.backend.database import MopError, raising, sql_function
from pg_mop.engines import greenplum


@sql_function
def gpu_configuration(db, output_table, source):
    """Write a row (hostname, gpu_descr) for each GPU that `source` (tensorflow or nvidia) tells of."""
    source = (source or "tensorflow").strip().lower()
    if source not in ("tensorflow", "nvidia"):
        raise MopError(f"source must be 'tensorflow' or 'nvidia', not {source!r}")
    output = db.output_table(output_table)
    db.execute(f"CREATE TABLE {output} (hostname text, gpu_descr text)")
    db.identify_by_all(output)
    told = greenplum.gpus(db, source) if db.has_segments else {"localhost": descriptions(source)}
    for host, lines in told.items():
        db.execute(f"INSERT INTO {output} SELECT $1, unnest($2)", ["text", "text[]"], [host, lines])


def descriptions(source):
    """A line for each GPU of this machine that `source` tells of. Raises MopError."""
    if source == "tensorflow":
        lines = program.run("mop_udf.gpus", what="TensorFlow cannot be asked for GPUs").decode().splitlines()
    else:
        try:
            lines = subprocess.run(
                ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True
            ).stdout.splitlines()
        except (OSError, subprocess.SubprocessError):
            lines = []  # no such command or no driver: no GPU, by the contract
    return [line for line in lines if line.strip()]


def gpus_here(plpy, source):
    """The same as SQL's, on a segment."""
    return raising(plpy, descriptions, source)
