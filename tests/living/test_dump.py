"""A database with finished runs goes through pg_dump and comes back whole."""

import subprocess

import pytest

from support.client import Client
from support.cluster import client_program
from support.places import DEFAULTS, job, outcome, prepare
from support.workload import alike, layer, sequential

LOGGED = ("mop_run", "mop_configuration", "mop_segment", "mop_unit")
FIT = "SELECT madlib.madlib_keras_fit_multiple_model('lodger.packed', 'lodger.again', 'lodger.mst', 1, FALSE)"


@pytest.fixture(scope="module")
def full(db):
    """The database after a job of the role `lodger`."""
    db.run("DROP ROLE IF EXISTS lodger; CREATE ROLE lodger LOGIN; GRANT mop_user TO lodger")
    prepare(db, "lodger", "lodger")
    client = db.another("lodger")
    job(client, "lodger")
    client.close()
    yield db
    db.run("DROP OWNED BY lodger CASCADE; DROP ROLE lodger")


@pytest.fixture
def copy(full):
    """Makes empty databases, which go in the end; gives a function name -> superuser's session."""
    made = []
    maker = Client(full.server, "postgres")

    def make(name):
        maker.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        maker.run(f"CREATE DATABASE {name} TEMPLATE template0")
        made.append((name, Client(full.server, name)))
        return made[-1][1]

    yield make
    for name, client in made:
        client.close()
        maker.run(f"DROP DATABASE {name} WITH (FORCE)")
    maker.close()


def program(db, name, *arguments, database=None, forgive=None):
    """Run a program of PostgreSQL; it must not fail nor say anything but errors that have `forgive`."""
    dsn = db.server.dsn()
    done = subprocess.run(
        [
            client_program(name),
            "-h",
            dsn["host"],
            "-p",
            str(dsn["port"]),
            "-U",
            "postgres",
            "-d",
            database or db.database,
            *arguments,
        ],
        capture_output=True,
        text=True,
    )
    if forgive is not None:
        errors = [line for line in done.stderr.splitlines() if "error: " in line]
        assert [line for line in errors if forgive not in line] == []
        return
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-3000:]


def logged(db):
    return {table: db.run(f"SELECT t::text FROM madlib.{table} t ORDER BY 1") for table in LOGGED}


def assert_lives(full, restored):
    """`restored` has what `full` has, predicts the same and trains on."""
    assert logged(restored) == logged(full)
    assert outcome(restored, "lodger") == outcome(full, "lodger")
    assert restored.run("SELECT * FROM madlib.mop_visit_order ORDER BY 1, 2, 3, 4") == full.run(
        "SELECT * FROM madlib.mop_visit_order ORDER BY 1, 2, 3, 4"
    )
    for name, value in DEFAULTS.items():
        restored.run("SELECT set_config(%s, %s, false)", [name, value])
    restored.run(
        "SELECT madlib.madlib_keras_predict('lodger.models', 'lodger.flowers', 'id', 'x', 'lodger.anew', "
        "'prob', FALSE, 1)"
    )
    assert restored.run("SELECT * FROM lodger.anew ORDER BY id, class_value") == alike(
        full.run("SELECT * FROM lodger.predicted ORDER BY id, class_value")
    )
    last = full.value("SELECT max(run_id) FROM madlib.mop_run")
    client = restored.another("lodger")
    client.run(FIT)
    assert client.value("SELECT max(run_id) FROM madlib.mop_runs") > last
    assert client.value("SELECT count(*) FROM lodger.again WHERE model_weights IS NOT NULL") == 2
    client.close()


def test_a_custom_dump_restores_and_lives(full, copy, tmp_path):
    file = str(tmp_path / "dump")
    program(full, "pg_dump", "-Fc", "-f", file)
    restored = copy("restored_custom")
    program(full, "pg_restore", "--exit-on-error", file, database="restored_custom")
    assert_lives(full, restored)


def test_a_plain_dump_restores_and_lives(full, copy, tmp_path):
    file = str(tmp_path / "dump.sql")
    program(full, "pg_dump", "-f", file)
    restored = copy("restored_plain")
    program(full, "psql", "-qX", "-o", "/dev/null", "-v", "ON_ERROR_STOP=1", "-f", file, database="restored_plain")
    assert_lives(full, restored)


def test_restoring_with_clean_over_what_is_there(full, copy, tmp_path):
    file = str(tmp_path / "dump")
    program(full, "pg_dump", "-Fc", "-f", file)
    restored = copy("restored_clean")
    program(full, "pg_restore", "--exit-on-error", file, database="restored_clean")
    restored.run("UPDATE lodger.models SET model_weights = NULL")
    # pg_restore says this of every partitioned table with a primary key, and goes on
    program(
        full,
        "pg_restore",
        "--clean",
        "--if-exists",
        file,
        database="restored_clean",
        forgive="cannot drop inherited constraint",
    )
    restored.close()
    again = Client(full.server, "restored_clean")
    assert_lives(full, again)
    again.close()


def test_the_tables_alone_restore_beside_a_new_extension(full, copy, tmp_path):
    """User tables without the extension: --schema-only first, then the data."""
    schema, data = str(tmp_path / "schema.sql"), str(tmp_path / "data.sql")
    program(full, "pg_dump", "--schema-only", "-n", "lodger", "-f", schema)
    program(full, "pg_dump", "--data-only", "-n", "lodger", "-f", data)
    restored = copy("restored_tables")
    restored.run("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE")
    for file in (schema, data):
        program(full, "psql", "-qX", "-o", "/dev/null", "-v", "ON_ERROR_STOP=1", "-f", file, database="restored_tables")
    assert outcome(restored, "lodger") == outcome(full, "lodger")
    client = restored.another("lodger")
    client.run(FIT)
    assert client.value("SELECT count(*) FROM lodger.again WHERE model_weights IS NOT NULL") == 2
    client.close()


def named_run(full, role):
    """Writes down a run and a limit of a role (by hand); gives the run's number."""
    full.run(
        f"INSERT INTO madlib.mop_owner (role) VALUES ('{role}'); "
        f"INSERT INTO madlib.mop_limit (role, threads) VALUES ('{role}', 2)"
    )
    return full.value(
        """INSERT INTO madlib.mop_run (owner, function, source_table, model_output_table, seed, scheduler,
        num_iterations, metrics_iterations, configurations, segments, parameters, coordinator_pid) SELECT owner, 'f',
        's', 'm', 1, 'r', 1, '{1}', 1, 1, '{}', 1 FROM madlib.mop_owner WHERE role = %s RETURNING run_id""",
        [role],
    )


@pytest.mark.parametrize("inserts", [[], ["--inserts"]], ids=["copy", "inserts"])
def test_a_dump_gives_the_runs_to_the_roles_that_are_called_so_and_to_nobody_else(full, copy, tmp_path, inserts):
    """Oids are another cluster's; who is gone, before the dump or there, stays gone, whoever has his name or number."""
    roles = ("dora", "enno", "fritz", "gone", "moved")
    full.run("".join(f"DROP ROLE IF EXISTS {role}; " for role in (*roles, "wanders")))
    full.run("".join(f"CREATE ROLE {role}; " for role in roles))
    runs = {role: named_run(full, role) for role in roles}
    full.run(
        "INSERT INTO madlib.mop_audit_log (act, role, login) SELECT 'x', role, role FROM unnest(%s) AS role",
        [list(roles)],
    )
    full.run("DROP ROLE gone; CREATE ROLE gone; ALTER ROLE moved RENAME TO wanders; CREATE ROLE moved")
    file = str(tmp_path / "dump.sql")
    program(full, "pg_dump", *inserts, "-f", file)
    # as in a cluster where oids are others and two roles are not there
    numbers = {role: full.value("SELECT oid FROM pg_roles WHERE rolname = %s", [role]) for role in ("dora", "wanders")}
    full.run("DROP ROLE dora, enno, fritz; CREATE ROLE enno; CREATE ROLE dora")
    restored = copy("restored_roles")
    program(full, "psql", "-qX", "-o", "/dev/null", "-v", "ON_ERROR_STOP=1", "-f", file, database="restored_roles")
    full.run("CREATE ROLE fritz")
    owner = "SELECT owner FROM madlib.mop_runs WHERE run_id = %s"
    assert {role: restored.value(owner, [run]) for role, run in runs.items()} == {
        "dora": "dora",
        "enno": "enno",
        "fritz": "unknown (fritz)",
        "gone": "unknown (gone)",
        "moved": "wanders",
    }
    who = {r["role"]: r["who"] for r in restored.run("SELECT role, who::oid::int AS who FROM madlib.mop_owner")}
    assert who["dora"] not in (0, numbers["dora"]) and who["fritz"] == 0 and who["gone"] == 0
    assert who["wanders"] == numbers["wanders"] and "moved" not in who
    assert restored.run("SELECT role, who::text FROM madlib.mop_limit ORDER BY 1") == [
        {"role": "dora", "who": "dora"},
        {"role": "enno", "who": "enno"},
        {"role": "fritz", "who": "-"},
        {"role": "wanders", "who": "wanders"},
    ]
    acts = "SELECT role, who::text FROM madlib.mop_audit_log WHERE act = 'x' ORDER BY 1"
    assert restored.run(acts) == [
        {"role": "dora", "who": "dora"},
        {"role": "enno", "who": "enno"},
        {"role": "fritz", "who": "-"},
        {"role": "gone", "who": "-"},
        {"role": "wanders", "who": "wanders"},
    ]
    assert restored.value("SELECT count(*) FROM madlib.mop_audit WHERE act = 'end' AND role = 'lodger'") > 0
    # the numbers go on
    assert restored.value("INSERT INTO madlib.mop_owner (role) VALUES ('fritz') RETURNING owner") == full.value(
        "SELECT max(owner) + 1 FROM madlib.mop_owner"
    )
    full.run(
        "DELETE FROM madlib.mop_run WHERE run_id = ANY (%s); DELETE FROM madlib.mop_limit; "
        "DELETE FROM madlib.mop_owner WHERE role = ANY (%s); DROP ROLE dora, enno, fritz, gone, moved, wanders",
        [list(runs.values()), list(roles)],
    )
    full.run("DELETE FROM madlib.mop_audit_log WHERE act = 'x'")


def test_weights_in_parts_go_through_a_dump(full, copy, tmp_path):
    """Also such as would be more than pg_dump can write, as one value."""
    hidden = layer("Dense", name="d", units=600, activation="tanh")
    net = sequential("large", [4], hidden, layer("Dense", name="e", units=600), layer("Dense", name="o", units=3))
    client = full.another("lodger")
    for name, value in DEFAULTS.items():
        client.run("SELECT set_config(%s, %s, false)", [name, value])
    client.run("SELECT madlib.load_keras_model('lodger.large_arch', %s::json); SET pg_mop.weights_value_mb = 1", [net])
    client.run(
        "SELECT madlib.madlib_keras_fit('lodger.packed', 'lodger.large', 'lodger.large_arch', 1, $$loss='mse', "
        "optimizer='SGD(learning_rate=0.01)'$$, 'batch_size=8', 1)"
    )
    predict = "SELECT madlib.madlib_keras_predict('lodger.large', 'lodger.flowers', 'id', 'x', 'lodger.{}')"
    client.run(predict.format("of_large"))
    assert client.value("SELECT count(*) FROM lodger.large_parts") == 1
    client.close()
    file = str(tmp_path / "dump")
    program(full, "pg_dump", "-Fc", "-f", file)
    restored = copy("restored_parts")
    program(full, "pg_restore", "--exit-on-error", file, database="restored_parts")
    for name, value in DEFAULTS.items():
        restored.run("SELECT set_config(%s, %s, false)", [name, value])
    restored.run(predict.format("of_restored"))
    order = "ORDER BY id, class_value"
    assert restored.run(f"SELECT * FROM lodger.of_restored {order}") == alike(
        full.run(f"SELECT * FROM lodger.of_large {order}")
    )
    full.run("DROP TABLE lodger.large, lodger.large_summary, lodger.large_parts, lodger.large_arch, lodger.of_large")
