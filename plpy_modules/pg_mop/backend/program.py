"""Short programs of the packages that must not run in a backend: each runs in a separate process."""

from __future__ import annotations

import os
import subprocess

import mop_udf
from pg_mop.backend.errors import MopError

SECONDS = 120


def run(module: str, *arguments: str, stdin: bytes = b"", what: str, hint: str | None = None) -> bytes:
    """Run `python -m module arguments` in the packages' virtual environment, and return its output (bytes).

    The process has a minimal environment and no connection to the database. If the program
    fails, raises MopError: `what` is the message, the end of the program's error output is the DETAIL.
    """
    try:
        process = subprocess.run(
            [os.path.join(mop_udf.home, "bin", "python"), "-I", "-B", "-m", module, *arguments],
            input=stdin,
            capture_output=True,
            cwd="/",
            timeout=SECONDS,
            start_new_session=True,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent", "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
    except subprocess.TimeoutExpired:
        raise MopError(what, detail=f"The program {module} did not end within {SECONDS} s.", hint=hint) from None
    if process.returncode:
        raise MopError(what, detail=process.stderr.decode("utf-8", "replace").strip()[-1000:], hint=hint)
    return process.stdout
