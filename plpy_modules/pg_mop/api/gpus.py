"""gpu_configuration: a table of this server's GPUs (contract 4, section 5)."""

import subprocess

from pg_mop import program
from pg_mop.database import MopError, sql_function


@sql_function
def gpu_configuration(db, output_table, source):
    """Write a row (hostname, gpu_descr) for each GPU that `source` (tensorflow or nvidia) tells of."""
    source = (source or "tensorflow").strip().lower()
    if source not in ("tensorflow", "nvidia"):
        raise MopError(f"source must be 'tensorflow' or 'nvidia', not {source!r}")
    output = db.output_table(output_table)
    if source == "tensorflow":
        lines = program.run("mop_udf.gpus", what="TensorFlow cannot be asked for GPUs").decode().splitlines()
    else:
        try:
            lines = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30,
                                   check=True).stdout.splitlines()
        except (OSError, subprocess.SubprocessError):
            lines = []  # no such command or no driver: no GPU, by the contract
    db.execute(f"CREATE TABLE {output} (hostname text, gpu_descr text)")
    db.execute(f"INSERT INTO {output} SELECT 'localhost', unnest($1)", ["text[]"], [[x for x in lines if x.strip()]])
