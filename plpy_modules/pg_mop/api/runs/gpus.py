"""gpu_configuration: a table of this server's GPUs (docs/contract/fit_evaluate_predict.md, section 5)."""

from __future__ import annotations

import subprocess
from typing import Any

from pg_mop.backend import program
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import raising, sql_function
from pg_mop.engines import greenplum


@sql_function
def gpu_configuration(db: Database, output_table: str | None, source: str | None) -> None:
    """Write a row (hostname, gpu_descr) for each GPU that `source` (tensorflow or nvidia) reports."""
    source = (source or "tensorflow").strip().lower()
    if source not in ("tensorflow", "nvidia"):
        raise MopError(f"source must be 'tensorflow' or 'nvidia', not {source!r}")
    output = db.output_table(output_table)
    db.execute(f"CREATE TABLE {output} (hostname text, gpu_descr text)")
    db.identify_by_all(output)
    lines_of_hosts = greenplum.gpus(db, source) if db.has_segments else {"localhost": descriptions(source)}
    for host, lines in lines_of_hosts.items():
        db.execute(f"INSERT INTO {output} SELECT $1, unnest($2)", ["text", "text[]"], [host, lines])


def descriptions(source: str) -> list[str]:
    """A line for each GPU of this machine that `source` reports. Raises MopError."""
    if source == "tensorflow":
        lines = (
            program.run(
                "mop_udf.pool.gpus",
                what="TensorFlow cannot be asked for GPUs",
                hint="Pass 'nvidia' as the second argument: nvidia-smi lists them.",
            )
            .decode()
            .splitlines()
        )
    else:
        try:
            lines = subprocess.run(
                ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True
            ).stdout.splitlines()
        except (OSError, subprocess.SubprocessError):
            lines = []  # without the command or the driver: no GPU, by the contract
    return [line for line in lines if line.strip()]


def gpus_here(plpy: Any, source: str) -> list[str]:
    """The descriptions, for SQL on a Greenplum segment."""
    return raising(plpy, descriptions, source)
