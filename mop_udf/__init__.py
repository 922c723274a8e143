"""What runs on the segments: the aggregate in the backend, and the trainer process that it feeds."""

import sys

home = None  # the virtual environment of the packages, in a backend: every SQL function sees to it (tools/build_sql.py)


def packages(of):
    """The directory of a virtual environment's packages for the Python that runs: an older one's may be there, too."""
    return f"{of}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
