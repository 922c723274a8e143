"""The process that solves a program for the scheduler milp: `python -m pg_mop.schedule.compared.milp_process LIFE SECONDS`.

It reads a shop as JSON from its standard input, writes the solution as JSON, and ends. LIFE is the number of a pipe's
descriptor: the kernel kills the process when nobody holds the other end. A backend has no HiGHS of its own, because HiGHS
starts threads, which could receive the backend's signals.
"""

import json
import sys

from mop_udf.pool.child_process import die_with_pipe, prefer_oom_kill
from pg_mop.schedule.compared.milp import Solution, solve
from pg_mop.schedule.compared.open_shop import Operation, Seconds


def packed(shop: Seconds) -> str:
    """A shop as JSON."""
    return json.dumps([list(job.items()) for job in shop])


def unpacked(text: str) -> Solution:
    """The solution that the process wrote."""
    found = json.loads(text)
    return Solution([Operation(*operation) for operation in found["schedule"]], found["bound"], found["why"])


def main(life: str, seconds: str) -> None:
    die_with_pipe(int(life))
    prefer_oom_kill()
    shop = [dict(map(tuple, job)) for job in json.load(sys.stdin)]
    json.dump(solve(shop, float(seconds))._asdict(), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
