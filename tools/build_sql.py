"""Write the extension's SQL: build_sql.py [--greenplum] HOME INTO [FILE ...].

HOME is the virtual environment of the packages. Into the directory INTO go pg_mop--<version>.sql, made of sql/ and of
what stands in sql/postgresql for PostgreSQL alone, and the update scripts of migrations/, each with its line
`#functions` replaced by sql/'s functions and views; and FILEs, install scripts of older versions. In all of them a line
`#python` becomes what every PL/Python function begins with.

For Greenplum it is pg_mop--<version>.sql alone, with sql/greenplum in place of sql/postgresql: no older version was
there. Without arguments it prints PostgreSQL's install script, as it is frozen for the tests of updates.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# what an update script writes out itself
ONCE = ("10_tables.sql", "11_replica_identity.sql", "11_row_security.sql", "19_row_triggers.sql", "19_triggers.sql")

# find the packages of this very version, once per session; after an update, instead of those of the version before.
# What we keep is kept in our modules, never in GD, which is the users': what they pickle in PL/Python has it within
HEADING = """import sys
if getattr(sys.modules.get('mop_udf'), 'home', None) != '@HOME@':
    import os, site
    before, python = list(sys.path), '.'.join(map(str, sys.version_info[:2]))
    packages = '@HOME@/lib/python' + python + '/site-packages'
    if not os.path.isdir(packages):
        plpy.error('there are no packages of pg_mop for Python ' + python + ', the server\\'s: no ' + packages@HINT@)
    site.addsitedir(packages)
    sys.path[:] = [p for p in sys.path if p not in before] + before
    for module in [m for m in sys.modules if m.split('.')[0] in ('pg_mop', 'mop_udf')]:
        del sys.modules[module]
    import mop_udf
    mop_udf.home = '@HOME@'"""
HINT = ", hint='sudo make install, in the sources of pg_mop'"  # (Greenplum's plpy.error takes a text alone)
# what follows it on Greenplum, so that nothing of ours runs a query by another plpy
GREENPLUM = """
import plpy
from pg_mop.backend.frames import careful
plpy = careful(plpy)"""


def sources(family):
    """The files of a family's install script, in order."""
    return sorted([*(ROOT / "sql").glob("*.sql"), *(ROOT / "sql" / family).glob("*.sql")], key=lambda f: f.name)


def install_script(family):
    return "".join(f.read_text() for f in sources(family))


def heading(home, family="postgresql"):
    """What every PL/Python function begins with."""
    greenplum = family == "greenplum"
    return HEADING.replace("@HOME@", home).replace("@HINT@", "" if greenplum else HINT) + (
        GREENPLUM if greenplum else ""
    )


def main(home, into, *older, family="postgresql"):
    version = re.search(r"default_version = '(.*)'", (ROOT / "pg_mop.control").read_text())[1]
    scripts = {f"pg_mop--{version}.sql": install_script(family)}
    functions = "".join(f.read_text() for f in sources("postgresql") if f.name not in ONCE)
    functions = re.sub(r"(?m)^CREATE (FUNCTION|PROCEDURE|AGGREGATE|VIEW)", r"CREATE OR REPLACE \1", functions)
    updates = (ROOT / "migrations").glob("*.sql") if family == "postgresql" else ()
    for path in [*updates, *map(pathlib.Path, older)]:
        scripts[path.name] = re.sub(r"(?m)^#functions$", lambda _: functions, path.read_text())
    for name, text in scripts.items():
        text = re.sub(r"(?m)^#python$", lambda _: heading(home, family), text)
        (pathlib.Path(into) / name).write_text(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--greenplum"]:
        main(*sys.argv[2:], family="greenplum")
    elif sys.argv[1:]:
        main(*sys.argv[1:])
    else:
        print(install_script("postgresql"), end="")
