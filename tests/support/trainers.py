"""The trainers of the servers of the tests, by their processes."""

import os
import re

from support.cluster import HOME


def all_trainers():
    """Process IDs of the trainers of this checkout's servers, and of a Greenplum that the tests are given."""
    homes = re.escape(str(HOME))
    if "PG_MOP_GREENPLUM" in os.environ:  # the packages are where `make install` has put them
        homes += r"|\S*/pg_mop-[0-9.]+"
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", errors="replace") as file:
                command = file.read().replace("\0", " ")
        except OSError:  # the process has ended
            continue
        if re.search(f"(?:{homes})/.*mop_udf\\.training\\.trainer ", command):
            found.append(int(pid))
    return found


def trainers():
    """Process IDs of the trainers that a session has: not of those that wait in the pool."""
    return [pid for pid in all_trainers() if of_backend(pid)]


def of_backend(pid):
    """The process ID of the backend that uses the trainer `pid`; None if the trainer has ended."""
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            words = file.read().replace(" ", "\0").split("\0")
        return int(words[words.index("mop_udf.training.trainer") + 1])
    except (OSError, ValueError):
        return None
