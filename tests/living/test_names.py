"""Databases, roles, schemas, tables and columns of names that need every kind of quoting."""

import pytest

from support.client import Client
from support.places import DEFAULTS, job, outcome, prepare, quoted
from support.workload import ADAM


def fill(name):
    """`name` with as many spaces and letters as a name may have."""
    return name + " " + "n" * (62 - len(name.encode()))


@pytest.fixture
def odd_place(server, request):
    """(superuser's session, user's session) in a database and of a role whose name is the parameter's."""
    name = request.param
    maker = Client(server, "postgres")
    maker.run(f"DROP DATABASE IF EXISTS {quoted(name)} WITH (FORCE)")
    maker.run(f"CREATE DATABASE {quoted(name)}")
    db = Client(server, name)
    # PostgreSQL itself refuses quotes, backslashes and dollars in an extension's schema
    extension = "".join(c for c in name if c not in "\"'\\$")
    db.run(
        f"CREATE SCHEMA {quoted(extension)}; CREATE EXTENSION pg_mop SCHEMA {quoted(extension)} CASCADE; "
        f"DROP ROLE IF EXISTS {quoted(name)}; CREATE ROLE {quoted(name)} LOGIN; GRANT mop_user TO {quoted(name)}"
    )
    client = Client(server, name, name)
    yield db, client, name, extension
    client.close()
    db.run(f"DROP OWNED BY {quoted(name)} CASCADE; DROP ROLE {quoted(name)}")
    db.close()
    maker.run(f"DROP DATABASE {quoted(name)} WITH (FORCE)")
    maker.close()


# owner: a schema of the extension with a percent sign in its name (sql/70_help.sql, catalog.py)
@pytest.mark.parametrize("odd_place", [fill('host=x it\'s "odd" \\ 100%s größe 日本 %'), " "], indirect=True)
def test_the_job_is_done_under_odd_names(odd_place):
    db, client, name, extension = odd_place
    prepare(db, name, name, extension=extension)
    job(client, name, extension)
    assert [row["error"] for row in outcome(db, name)["losses"]] == [None, None]
    runs = client.run(f"SELECT owner, status, model_output_table FROM {quoted(extension)}.mop_runs")
    assert {(row["owner"], row["status"]) for row in runs} == {(name, "finished")} and len(runs) == 2


@pytest.mark.parametrize("name", ['say "x", it\'s \\ 100%s', "dbname=x größe 日本 " + "C" * 27])
def test_odd_tables_and_columns(db, name):
    """Output tables take a suffix, so that their names are shorter than 63 bytes."""
    s = quoted(name)
    for setting, value in DEFAULTS.items():
        db.run("SELECT set_config(%s, %s, false)", [setting, value])
    if db.value("SELECT to_regnamespace('plain') IS NULL"):
        prepare(db, "plain")
    prepare(db, name)

    def table(suffix):
        return f"{s}.{quoted(name + suffix)}"

    i, x, y = (quoted(letter + name[:40]) for letter in "ixy")
    db.run(f"CREATE TABLE {table('')} AS SELECT id AS {i}, x AS {x}, y AS {y} FROM plain.flowers")
    db.run("SELECT madlib.training_preprocessor_dl(%s, %s, %s, %s, 10)", [table(""), table("_p"), y, x])
    db.run(
        "SELECT madlib.madlib_keras_fit_multiple_model(%s, %s, %s, 1, FALSE)", [table("_p"), table("_m"), f"{s}.mst"]
    )
    db.run(
        "SELECT madlib.madlib_keras_predict(%s, %s, %s, %s, %s, 'response', FALSE, 1)",
        [table("_m"), table(""), i, x, table("_r")],
    )
    db.run(
        "SELECT madlib.madlib_keras_fit(%s, %s, %s, 1, %s, 'batch_size=8', 1)",
        [table("_p"), table("_f"), f"{s}.arch", ADAM.format(0.05)],
    )
    # the same rows under plain names give the same bytes
    db.run(
        "DROP TABLE IF EXISTS plain.packed, plain.packed_summary, plain.models, plain.models_info, plain.models_summary"
    )
    db.run("SELECT madlib.training_preprocessor_dl('plain.flowers', 'plain.packed', 'y', 'x', 10)")
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('plain.packed', 'plain.models', 'plain.mst', 1, FALSE)")
    wanted = "SELECT mst_key, md5(model_weights) AS w FROM {} ORDER BY 1"
    assert db.run(wanted.format(table("_m"))) == db.run(wanted.format("plain.models"))
    assert db.value(f"SELECT count(*) FROM {table('_r')}") == 60
