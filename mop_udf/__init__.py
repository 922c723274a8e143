"""Training and inference on the segments: the aggregate in the backend, and the trainer process that it feeds."""

import sys
from typing import Any

home: Any = (
    None  # in a backend: the virtual environment with the packages; every SQL function sets it (tools/build_sql.py)
)


def packages(of: str) -> str:
    """The site-packages directory, in the virtual environment `of`, for the running Python version.

    The directory of an older Python may exist beside it.
    """
    return f"{of}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
