"""Roles that share what they train: the roles, their packed rows, and runs that a role forges."""

import json

import pytest

from support.cluster import eventually
from support.workload import ADAM, dense, load, make_data, selection

SETTINGS = "SET pg_mop.seed = 5; SET pg_mop.reuse = on; SET pg_mop.kernel = 'plain'; SET pg_mop.chain_seconds = 0.2"


ITERATIONS = 3


MEMBERS = ("ann", "bob")


ROLES = (*MEMBERS, "eve")


@pytest.fixture(scope="module", autouse=True)
def data(db):
    """Packed rows that all roles may read, and the roles: ann and bob are members of `team`, eve is not."""
    names = ", ".join((*ROLES, "team"))
    db.run(f"DROP ROLE IF EXISTS {names}; CREATE ROLE team")
    for role in ROLES:
        db.run(f"CREATE ROLE {role} LOGIN; GRANT mop_user TO {role}; CREATE SCHEMA {role} AUTHORIZATION {role}")
    db.run("GRANT team TO ann, bob; CREATE SCHEMA rows; SET search_path = rows")
    make_data(db, rows=60, segments=2)
    db.run(
        "ALTER TABLE flowers_packed RENAME TO original; ALTER TABLE flowers_packed_summary RENAME TO original_summary"
    )
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(rate), "batch_size=8") for rate in (0.01, 0.02)])
    selection(db, "long", "arch", [(1, ADAM.format(0.03), "batch_size=2, epochs=3")])
    db.run(
        f"GRANT USAGE ON SCHEMA rows TO {', '.join(ROLES)}; GRANT SELECT ON ALL TABLES IN SCHEMA rows TO {', '.join(ROLES)}"
    )
    yield
    db.run(f"RESET search_path; DELETE FROM madlib.mop_run; DROP OWNED BY {names} CASCADE; DROP ROLE {names}")


@pytest.fixture
def packed(db):
    """A new packed table, rows.packed: plain, readable by all roles; no run knows it."""
    db.run(
        "DROP TABLE IF EXISTS packed, packed_summary CASCADE; DELETE FROM madlib.mop_run; DELETE FROM madlib.mop_sharing; "
        "CREATE TABLE packed AS TABLE original; CREATE TABLE packed_summary AS TABLE original_summary; "
        "REVOKE SELECT ON packed FROM PUBLIC; GRANT SELECT ON packed, packed_summary TO ann, bob, eve; "
        "GRANT team TO ann, bob; GRANT USAGE ON SCHEMA rows TO ann, bob, eve"
    )
    return "rows.packed"


@pytest.fixture
def clients(db, packed):
    """Sessions of ann, bob and eve. ann and bob share with the team."""
    found = {role: db.another(role) for role in ROLES}
    for role, client in found.items():
        client.run(f"SET search_path = {role}, rows; {SETTINGS}")
        client.run("DROP TABLE IF EXISTS m, m_info, m_summary, m_trials, again, again_info, again_summary")
    for role in MEMBERS:
        found[role].run("SELECT madlib.mop_share_training('team')")
    yield found
    for client in found.values():
        client.close()


def call(selection_table="mst", source="packed", iterations=ITERATIONS, output="m", validation="NULL"):
    return (
        f"SELECT madlib.madlib_keras_fit_multiple_model('{source}', '{output}', '{selection_table}', {iterations}, FALSE, "
        f"{validation}, 1)"
    )


def train(client, *args, **named):
    """Train; returns the run's number."""
    del client.connection.notices[:]
    client.run(call(*args, **named))
    return client.value("SELECT max(run_id) FROM madlib.mop_runs WHERE status = 'finished'")


def units(db, run_id, kind="train"):
    """How many units a run has done itself."""
    return db.value(
        "SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND kind = %s AND status = 'finished'", [run_id, kind]
    )


WHOLE = 2 * 2 * ITERATIONS  # training units of `mst`


SEARCH = (
    "SELECT madlib.mop_search('packed', 'm', 'ann.own', $s${\"model_id\": [1, 2], \"loss\": [\"categorical_crossentropy\"], "
    '"metrics": [["accuracy"]], "batch_size": [8], "optimizer_params_list": [{"optimizer": ["Adam"], '
    "\"lr\": [0.001, 0.1, \"log\"]}]}$s$, 'random', 'trials=6, iterations=2', 'loss')"
)


def weights(db, role, table="m"):
    return db.run(f"SELECT mst_key, md5(model_weights) AS weights FROM {role}.{table} ORDER BY 1")


def metrics(client, run_id):
    return client.run(
        "SELECT mst_key, iteration, dataset, name, value FROM madlib.mop_metrics WHERE run_id = %s ORDER BY 1, 2, 3, 4",
        [run_id],
    )


def order(client, run_id):
    return client.run(
        "SELECT mst_key, iteration, position, segment FROM madlib.mop_visit_order WHERE run_id = %s ORDER BY 1, 2, 3",
        [run_id],
    )


def all_of(db, run_id):
    """All that the catalog has of a run, but what tells when it was looked at."""
    tables = "run configuration stage request segment unit stage_state state_table metric checkpoint taken_unit".split()
    return [
        db.run(f"SELECT t::text FROM madlib.mop_{table} t WHERE run_id = %s ORDER BY 1", [run_id]) for table in tables
    ]


def locks_of(db, run_id):
    """Who has locked the catalog's rows of a run: the transactions, by table and row."""
    tables = "run configuration stage request unit stage_state state_table metric checkpoint segment shared_run".split()
    found = [
        db.run(
            f"SELECT ctid::text, xmin::text, xmax::text FROM madlib.mop_{table} WHERE run_id = %s ORDER BY 1", [run_id]
        )
        for table in tables
    ]
    owners = "SELECT ctid::text, xmax::text FROM madlib.mop_owner WHERE role = 'ann'"
    return [*found, db.run(owners)]


NEVER = {
    "bob has not said so": "DELETE FROM madlib.mop_sharing s USING madlib.mop_owner o "
    "WHERE o.owner = s.owner AND o.role = 'bob'",
    "bob has left the group": "REVOKE team FROM bob",
    "ann has left the group": "REVOKE team FROM ann",
    "bob sees other rows": "ALTER TABLE packed ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON packed TO bob, ann USING (true)",
    "a row was written": "UPDATE packed SET buffer_id = buffer_id WHERE buffer_id = 0",
    "the rows are a copy": "CREATE TABLE copy AS TABLE packed; DROP TABLE packed; ALTER TABLE copy RENAME TO packed; "
    "GRANT SELECT ON packed TO ann, bob, eve",
}


def forged_run(client, db, like, tables):
    """A run of the client's that claims to be the run `like`: its stages, its segments, its rows."""
    facts = db.run("SELECT row_to_json(r) AS r FROM madlib.mop_run r WHERE run_id = %s", [like])[0]["r"]
    run = {**facts, "coordinator": client.value("SELECT backend FROM madlib.mop_tokens")}
    segments = db.value("SELECT json_agg(s) FROM madlib.mop_segment s WHERE run_id = %s", [like])
    run_id = client.value(
        "SELECT madlib.mop_open_run(%s, %s)", [json.dumps(run), json.dumps([{**s, "copies": []} for s in segments])]
    )
    rows = [
        db.value(f"SELECT json_agg(t) FROM madlib.mop_{table} t WHERE run_id = %s", [like])
        for table in ("configuration", "stage", "request")
    ]
    rows[1] = [{**row, "version": 0} for row in rows[1]]
    client.run("SELECT madlib.mop_ask(%s, 1, %s, %s, %s)", [run_id, *map(json.dumps, rows)])
    oids = [db.value("SELECT %s::regclass::oid::bigint", [table]) for table in tables]
    shares = client.value(
        "SELECT madlib.mop_share_run(%s, 1, %s::oid, %s::oid)", [run_id, *oids, *[None] * (2 - len(oids))]
    )
    return run_id, shares


def asked(client, db, run_id, like):
    """What the functions that a coordinator asks with tell of the stages of another run."""
    names = [row["identity"] for row in db.run("SELECT identity FROM madlib.mop_stage WHERE run_id = %s", [like])]
    return [
        client.run("SELECT * FROM madlib.mop_known_shared(%s, %s, '{}')", [run_id, names]),
        client.run("SELECT * FROM madlib.mop_shared_beside(%s, -100)", [run_id]),
        client.run("SELECT * FROM madlib.mop_shared_stages_beside(%s, '{-1}', %s)", [run_id, names]),
    ]


NARROW = {
    "no right on the table": "REVOKE SELECT ON packed FROM bob",
    "rights on columns alone": "REVOKE SELECT ON packed FROM bob; GRANT SELECT (x, y, buffer_id) ON packed TO bob",
    "no right on the schema": "REVOKE USAGE ON SCHEMA rows FROM bob",
    "row security": "ALTER TABLE packed ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON packed TO bob USING (buffer_id = 0)",
}


HOSTILE = {
    "a view": "CREATE VIEW bob.t AS SELECT bob.spring(1) AS ctid, 1 AS xmin, 1 AS __dist_key__",
    "a view over the rows": "CREATE VIEW bob.t AS SELECT *, bob.spring(1) FROM rows.packed",
    "a table with row security": "CREATE TABLE bob.t (__dist_key__ int); INSERT INTO bob.t VALUES (1); ALTER TABLE bob.t "
    "ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; CREATE POLICY p ON bob.t USING (bob.spring(1) > 0)",
    "a partition that is a foreign table": "CREATE TABLE bob.t (__dist_key__ int) PARTITION BY LIST (__dist_key__); "
    "CREATE FOREIGN TABLE bob.f PARTITION OF bob.t FOR VALUES IN (1) SERVER trap",
    "a temporary table": "CREATE TEMP TABLE t AS SELECT 1 AS __dist_key__",
    "an ordinary table": "CREATE TABLE bob.t AS SELECT 1 AS a",
    "an empty table": "CREATE TABLE bob.t (__dist_key__ int)",
    "no table": "CREATE TYPE bob.t AS (__dist_key__ int)",
}


# what PostgreSQL may execute for a query of a plain table, with the rights of whoever asks: `bob.still` is IMMUTABLE
HANGING = {
    "an expression in an index": "CREATE INDEX ON bob.t ((bob.still(1)))",
    "the predicate of an index": "CREATE INDEX ON bob.t (__dist_key__) WHERE bob.still(1) > 0",
    "an exclusion constraint": "ALTER TABLE bob.t ADD EXCLUDE USING btree ((bob.still(1) + __dist_key__) WITH =)",
    "an expression in statistics": "CREATE STATISTICS bob.s ON (bob.still(1) + __dist_key__) FROM bob.t",
    "an index of a partition": "DROP TABLE bob.t; CREATE TABLE bob.t (__dist_key__ int) PARTITION BY LIST (__dist_key__); "
    "CREATE TABLE bob.p PARTITION OF bob.t FOR VALUES IN (1); INSERT INTO bob.t VALUES (1); "
    "CREATE INDEX ON bob.p ((bob.still(1)))",
    "an index of a child": "CREATE TABLE bob.p () INHERITS (bob.t); INSERT INTO bob.p VALUES (2); "
    "CREATE INDEX ON bob.p ((bob.still(1)))",
    "a constraint": "ALTER TABLE bob.t ADD CHECK (bob.still(__dist_key__) > 0)",
    "a default": "ALTER TABLE bob.t ADD COLUMN a int DEFAULT bob.still(1)",
    "a generated column": "ALTER TABLE bob.t ADD COLUMN a int GENERATED ALWAYS AS (bob.still(__dist_key__)) STORED",
    "an expression that makes partitions": "DROP TABLE bob.t; CREATE TABLE bob.t (__dist_key__ int) "
    "PARTITION BY LIST ((bob.still(1) + __dist_key__)); CREATE TABLE bob.p PARTITION OF bob.t DEFAULT; "
    "INSERT INTO bob.t VALUES (1)",
    "a type of the user": "CREATE DOMAIN bob.d AS int CHECK (bob.still(1) > 0); ALTER TABLE bob.t ADD COLUMN a bob.d",
    "a rule": "CREATE RULE r AS ON INSERT TO bob.t DO ALSO SELECT bob.still(1)",
}


EVALUATED = (
    "an expression in an index",
    "the predicate of an index",
    "an exclusion constraint",
    "an expression in statistics",
)


CHANGED = {
    "renamed": "ALTER TABLE packed RENAME x TO z; ALTER TABLE packed RENAME y TO x; ALTER TABLE packed RENAME z TO y",
    "dropped": "ALTER TABLE packed DROP COLUMN y",
    "added": "ALTER TABLE packed ADD COLUMN z integer",
}


def bad_state(db, run_id, sql):
    """Change the model states of a run as a role could that writes them by hand."""
    for row in db.run("SELECT state_table FROM madlib.mop_state_table WHERE run_id = %s", [run_id]):
        db.run(f"UPDATE madlib.mop_state_{run_id}_{row['state_table']} SET data = {sql}")


FORGED = [
    ("metrics", value)
    for value in (
        '{"accuracy": "high"}', "[]", '{"accuracy": {"a": 1}}', '{"accuracy": 1e999}', '{"accuracy": -1e309}',
        '{"accuracy": 1e999999999}', '{"accuracy": 1e-400}', '{"accuracy": 1' + 400 * "0" + "}", '{"a\\u0000": 1}',
        '{"a\\ud800": 1}', '{"accuracy": 1, "accuracy": 2e308}',
    )
] + [("loss", "NaN"), ("loss", "-Infinity"), ("metric", "Infinity")]  # fmt: skip


def begun(db, role, meanwhile=lambda: None):
    """Waits until a run of the role trains; returns its number. `meanwhile` is called again and again until then."""
    sql = (
        "SELECT max(u.run_id) FROM madlib.mop_unit u JOIN madlib.mop_run r USING (run_id) JOIN madlib.mop_owner o "
        f"USING (owner) WHERE o.role = '{role}' AND r.status = 'running' AND u.status = 'finished'"
    )
    assert eventually(lambda: db.value(sql) is not None or meanwhile(), 120)
    return db.value(sql)


def looks_around(db, role):
    """Wait until a run of the role has begun and reads the runs of others. Returns the number of the run."""
    assert eventually(lambda: last(db, role) is not None, 120)
    sql = f"SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT sessions FROM%run_id = {last(db, role)}'"
    assert eventually(lambda: db.value(sql), 120)
    return last(db, role)


def last(db, role):
    return db.value(
        "SELECT max(run_id) FROM madlib.mop_run r JOIN madlib.mop_owner o USING (owner) WHERE o.role = %s", [role]
    )
