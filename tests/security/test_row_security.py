"""The sessions that train for a role see the rows that the role sees, where row security asks for more than the role."""

import pytest

ROWS = 300
TRAIN = (
    "SELECT madlib.mop_train('rented', '{}', target => 'y', id => 'id', exclude => 'tenant', layers => 'linear', "
    "max_trials => 1, baselines => false, families => 'nets', time_limit => '5 s')"
)


@pytest.fixture
def tenant(db):
    """A session of a role for which the rows of a table depend on a setting of its application."""
    db.run("CREATE ROLE landlord LOGIN; GRANT mop_user TO landlord; GRANT USAGE, CREATE ON SCHEMA public TO landlord")
    client = db.another("landlord")
    client.run(
        "CREATE TABLE rented AS SELECT i AS id, i % 3 AS tenant, i % 7 AS size, CASE i % 3 WHEN 0 THEN 'secret ' || i % 4 END "
        f"AS note, (i % 7 > 3)::text AS y FROM generate_series(1, {ROWS}) i; "
        "ALTER TABLE rented ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; "
        "CREATE POLICY theirs ON rented USING (coalesce(tenant::text = current_setting('app.tenant', true), true)); "
        "SET app.tenant = '1'"
    )
    yield client
    client.close()
    db.run("DROP OWNED BY landlord CASCADE; DROP ROLE landlord")


def test_training_sees_the_rows_of_the_callers_application(tenant):
    tenant.run(TRAIN.format("homes"))
    parts = tenant.value("SELECT details->'rows' FROM homes")
    assert sum(parts.values()) == 100
    assert "secret" not in tenant.value("SELECT transform::text FROM homes")


def test_a_setting_of_the_transaction_counts(tenant):
    tenant.run("BEGIN; SELECT set_config('app.tenant', '2', true)")
    try:
        tenant.run(TRAIN.format("homes"))
        assert "secret" not in tenant.value("SELECT transform::text FROM homes")
    finally:
        tenant.run("ROLLBACK")


def test_a_job_sees_them(tenant):
    tenant.run(
        'SET "App.Odd" = $$it\'s$$; SET app.empty = $$$$; SELECT set_config($$app.long$$, repeat($$x.y$$, 100000), false)'
    )
    job = tenant.value(
        "SELECT madlib.mop_submit($$CREATE TABLE seen AS SELECT count(*) AS n, current_setting('app.odd', true) AS odd, "
        "current_setting('app.empty', true) AS empty, length(current_setting('app.long')) AS long FROM rented$$)"
    )
    tenant.run("SELECT madlib.mop_wait(%s)", [job])
    assert tenant.run("SELECT * FROM seen") == [{"n": 100, "odd": "it's", "empty": "", "long": 300_000}]


@pytest.mark.parametrize("source", ["rented", "SELECT * FROM rented", "shown", "SELECT * FROM mine()"])
def test_other_rows_are_refused_by_the_name_of_the_policy(tenant, source):
    condition = "id < 90 OR current_setting('application_name') ~ '^mop_train'"
    tenant.run(f"DROP POLICY theirs ON rented; CREATE POLICY strange ON rented USING ({condition})")
    tenant.run("CREATE VIEW shown AS SELECT * FROM rented")
    tenant.run(
        "CREATE FUNCTION mine() RETURNS TABLE(id int, tenant int, size int, y text) LANGUAGE sql STABLE AS "
        "$$ SELECT id, tenant, size, y FROM public.rented $$"
    )
    error = tenant.error(TRAIN.format("homes").replace("'rented'", f"'{source}'"))
    named = "a function reads" if "mine" in source else "strange of public.rented"
    assert error.pgcode == "42501" and named in error.diag.message_detail
    assert tenant.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'homes%%'") == 0


def test_rows_that_are_not_committed_are_refused(tenant):
    tenant.run("BEGIN; INSERT INTO rented SELECT 1000 + i, 1, i, NULL, 'true' FROM generate_series(1, 9) i")
    error = tenant.error(TRAIN.format("homes"))
    assert "COMMIT" in error.diag.message_hint
    tenant.run("ROLLBACK")
