"""Golden texts: tests/golden has one text for each kind of output. PG_MOP_GOLDEN=write writes them (the user of the tests
must be allowed to)."""

import difflib
import os
import pathlib

import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "golden"


def assert_golden(name, text):
    """Compare a text with tests/golden/NAME.txt, or write this file if PG_MOP_GOLDEN is 'write'."""
    path = FOLDER / f"{name}.txt"
    text = text.rstrip("\n") + "\n"
    if os.environ.get("PG_MOP_GOLDEN") == "write":
        path.write_text(text)
        return
    golden = path.read_text() if path.exists() else ""
    if text != golden:
        test = os.environ.get("PYTEST_CURRENT_TEST", "tests").split(" ")[0]
        changed = difflib.unified_diff(golden.splitlines(), text.splitlines(), f"golden/{name}.txt", "now", lineterm="")
        pytest.fail(
            "\n".join([*changed, "", f"if the new text is right: PG_MOP_GOLDEN=write make test TESTS='{test}'"]),
            pytrace=False,
        )
