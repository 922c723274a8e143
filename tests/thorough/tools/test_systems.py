"""What the checkout works with: one script picks PostgreSQL, and packages are those of the Python that runs."""

import ast
import os
import pathlib
import re
import subprocess

import pytest

from support.cluster import ROOT

PICKER = ROOT / "tools" / "postgres.sh"
# what is not ours to say, or says which were tried
ELSEWHERE = {".git", ".local", ".ruff_cache", ".hypothesis", "build", "versions", "CHANGELOG.md"}


def files():
    """The texts of the checkout: (path, text)."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in ELSEWHERE and not name.endswith((".egg-info", "cache__"))]
        for path in (pathlib.Path(folder, name) for name in names if name not in ELSEWHERE):
            data = path.read_bytes()
            if b"\0" not in data:
                yield path, data.decode()


def picked(what, **environment):
    done = subprocess.run(
        [PICKER, *what.split()],
        capture_output=True,
        text=True,
        env={**{k: v for k, v in os.environ.items() if k != "PG"}, **environment},
    )
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()


def test_nothing_but_the_picker_names_a_major_version():
    """Neither packages nor directories; a feature's first version may be said, and what was tried."""
    named = re.compile(
        r"postgresql(-[a-z0-9]+)*-[0-9]{2}\b|postgresql/[0-9]{2}\b|\bpg[_-]?1[0-9]\b|psql-[0-9]{2}\b"
        r"|data/1[0-9]\b|\bPG\s*[:?]?=\s*1[0-9]\s*$",
        re.I | re.M,
    )
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path, text in files()
        if path not in (PICKER, pathlib.Path(__file__))
        for match in named.finditer(text)
    }
    assert found == set()
    assert named.search("postgresql-plpython3-15") and named.search("/usr/lib/postgresql/15/bin")


def test_the_picker_takes_what_is_asked_for_else_the_newest_installed():
    installed = [int(path.parts[4]) for path in pathlib.Path("/usr/lib/postgresql").glob("*/lib/plpython3.so")]
    newest = str(max(installed))
    assert picked("version") == newest and picked("bin") == f"/usr/lib/postgresql/{newest}/bin"
    assert picked("packages") == f"postgresql-{newest} postgresql-plpython3-{newest}"
    assert picked("packages dev").split()[2:] == [f"postgresql-server-dev-{newest}", "python3-venv"]
    assert picked("version", PG="97") == "97" and picked("packages", PG="97").startswith("postgresql-97 ")
    assert picked("pg_config", PG="97") == "/usr/lib/postgresql/97/bin/pg_config"
    assert picked("bin", PG="97") == "PostgreSQL 97 is not installed: make debian PG=97"
    for wrong in ("newest", "15.4", "-1"):
        assert picked("version", PG=wrong) == f"PG must be a major version of PostgreSQL, not {wrong}"


@pytest.mark.skipif(os.getuid() == 0, reason="not run: root may make other systems")
def test_who_cannot_make_another_system_is_told_so():
    done = subprocess.run([ROOT / "tools" / "systems.sh", "forky"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "not run on forky: only root can make another system (sudo make test-systems)\n",
    )


def test_no_class_has_a_partial_that_python_3_14_binds():
    """There functools.partial is a descriptor, as functions are: as an attribute of a class it is given the object."""
    for top in ("plpy_modules", "mop_udf", "client", "benchmarks", "tests"):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                for line in node.body if isinstance(node, ast.ClassDef) else ():
                    value = line.value if isinstance(line, (ast.Assign, ast.AnnAssign)) else None
                    assert not (isinstance(value, ast.Call) and ast.unparse(value.func).endswith("partial")), (
                        path,
                        line.lineno,
                    )
