"""The three circles of tests. The directory of a test file decides its circle (the table in CONTRIBUTING.md)."""

import os
import pathlib

TESTS = pathlib.Path(__file__).resolve().parents[1]
# what `make check` runs, what `make test` runs besides, and what only `make test-all` and a third of each CI run
CIRCLES = {
    "check": ["unit"],
    "test": ["client", "engines", "equivalence", "faults", "living", "security", "sql", "training", "upgrade"],
    "rest": ["thorough"],
}


def files(circle: str) -> list[pathlib.Path]:
    """The test files of a circle alone, sorted."""
    return sorted(path for room in CIRCLES[circle] for path in (TESTS / room).rglob("test_*.py"))


def third(number: int) -> list[pathlib.Path]:
    """One of three parts of the rest; the part is `number` modulo 3. Neighbours in a directory go to different parts."""
    return files("rest")[number % 3 :: 3]


def draws(quick: int, thorough: int) -> int:
    """How many random cases a test draws: `thorough` many in `make test-all` and in CI's third, else `quick`."""
    return thorough if "PG_MOP_THOROUGH" in os.environ else quick
