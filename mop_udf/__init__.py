"""Training and inference on the segments: the aggregate in the backend, and the trainer process that it feeds."""

import glob
import os
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


def folders(of: str) -> list[str]:
    """The directories of all packages that the interpreter of the virtual environment `of` finds.

    These are its own site-packages, and the directories that .pth files there name: frameworks may be installed elsewhere.
    """
    own = packages(of)
    found = [own]
    for path in sorted(glob.glob(f"{glob.escape(own)}/*.pth")):
        with open(path, errors="replace") as file:
            lines = [line.strip() for line in file]
        named = [
            os.path.join(own, line) for line in lines if line and not line.startswith(("#", "import ", "import\t"))
        ]
        found += [folder for folder in named if os.path.isdir(folder)]
    return found
