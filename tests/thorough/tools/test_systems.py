"""What the checkout works with: one script picks PostgreSQL."""

import os
import pathlib
import subprocess

from support.cluster import ROOT

PICKER = ROOT / "tools" / "postgres.sh"


def picked(what, **environment):
    done = subprocess.run(
        [PICKER, *what.split()],
        capture_output=True,
        text=True,
        env={**{k: v for k, v in os.environ.items() if k != "PG"}, **environment},
    )
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()


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
