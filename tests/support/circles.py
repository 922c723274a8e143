"""The three circles of tests. The directory of a test file decides its circle (the table in CONTRIBUTING.md)."""

import os
import pathlib

TESTS = pathlib.Path(__file__).resolve().parents[1]
# the directories of `make check`, those that `make test` adds, and those that only `make test-all` and CI's third run
CIRCLES = {
    "check": ["unit"],
    "test": ["client", "engines", "equivalence", "faults", "living", "security", "sql", "training", "upgrade"],
    "rest": ["thorough"],
}
# pytest's options for a circle: three files at a time on two cores, because most tests wait for half of their time
# (a worker that died is not replaced: with loadfile, pytest-xdist 3.8 would wait for the new one for ever)
SIDE_BY_SIDE = ["-n", "3", "--dist", "loadfile", "--max-worker-restart=0"]


def files(circle: str) -> list[pathlib.Path]:
    """The test files of a circle alone, sorted."""
    return sorted(path for room in CIRCLES[circle] for path in (TESTS / room).rglob("test_*.py"))


def third(number: int) -> list[pathlib.Path]:
    """One of three parts of the rest; the part is `number` modulo 3. Neighbours in a directory go to different parts."""
    return files("rest")[number % 3 :: 3]


def draws(quick: int, thorough: int) -> int:
    """How many random cases a test draws: `thorough` many in `make test-all` and in CI's third, else `quick`."""
    return thorough if "PG_MOP_THOROUGH" in os.environ else quick
