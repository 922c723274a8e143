"""Write the extension's SQL: build_sql.py [--greenplum] HOME INTO [FILE ...].

HOME is the virtual environment of the packages. The tool writes these files into the directory INTO:

- pg_mop--<version>.sql: the files of sql/ and sql/postgresql/, sorted by name
- the update scripts of migrations/; in the last of them the line `#functions` becomes the functions, views and triggers
- the FILEs, install scripts of older versions

`$$ #python a.b.function(plpy, *args) $$` stands for a body that imports `b` from `a` and calls the function. In all files the
line `#python` becomes the first lines of every PL/Python function.

With --greenplum it writes only pg_mop--<version>.sql, from sql/ and sql/greenplum/: no older version supported Greenplum.
Without arguments it prints PostgreSQL's install script, which a release freezes for the tests of updates.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# files of objects that hold data or belong to tables: an update script changes these objects itself
ONCE = ("10_tables.sql", "11_replica_identity.sql", "11_row_security.sql", "19_indexes.sql")

# Finds the packages of this version once per session, and after an update replaces the old version's modules. Our modules
# hold all data of a session. GD belongs to the users, who can pickle it in PL/Python.
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
# the next lines on Greenplum, where all our queries use the careful plpy
GREENPLUM = """
import plpy
from pg_mop.backend.frames import careful
plpy = careful(plpy)"""


def sources(family):
    """The files of a family's install script, in order."""
    return sorted([*(ROOT / "sql").glob("*.sql"), *(ROOT / "sql" / family).glob("*.sql")], key=lambda f: f.name)


def text_of(path):
    """The SQL of a file, with the bodies of its functions that only call Python."""
    return re.sub(
        r"\$\$ #python ([\w.]+)\.(\w+)\.(\w+\(.*) \$\$",
        r"$$\n#python\nfrom \1 import \2\nreturn \2.\3\n$$",
        path.read_text(),
    )


def install_script(family):
    return "".join(map(text_of, sources(family)))


def again(functions):
    """The SQL that creates functions, views and triggers, as an update script runs it: some of them exist."""
    functions = re.sub(r"(?m)^CREATE (FUNCTION|PROCEDURE|AGGREGATE|VIEW)", r"CREATE OR REPLACE \1", functions)
    # (CREATE OR REPLACE TRIGGER is new in PostgreSQL 14)
    functions = re.sub(r"(?m)^CREATE TRIGGER (\w+) .* ON (\S+)$", r"DROP TRIGGER IF EXISTS \1 ON \2;\n\g<0>", functions)
    return re.sub(r"(?m)^CREATE EVENT TRIGGER (\w+)", r"DROP EVENT TRIGGER IF EXISTS \1;\n\g<0>", functions)


def heading(home, family="postgresql"):
    """The first lines of every PL/Python function."""
    greenplum = family == "greenplum"
    return HEADING.replace("@HOME@", home).replace("@HINT@", "" if greenplum else HINT) + (
        GREENPLUM if greenplum else ""
    )


def main(home, into, *older, family="postgresql"):
    version = re.search(r"default_version = '(.*)'", (ROOT / "pg_mop.control").read_text())[1]
    scripts = {f"pg_mop--{version}.sql": install_script(family)}
    functions = again("".join(text_of(f) for f in sources("postgresql") if f.name not in ONCE))
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
