"""A role or database whose transactions are at another isolation level trains all the same."""
# owner: training refuses any level but read committed; see the report for the mend

import pytest

from support.places import job, outcome, prepare


@pytest.fixture(scope="module")
def expected(db):
    db.run("DROP ROLE IF EXISTS lodger; CREATE ROLE lodger LOGIN; GRANT mop_user TO lodger")
    prepare(db, "lodger", "lodger")
    client = db.another("lodger")
    job(client, "lodger")
    client.close()
    yield outcome(db, "lodger")
    db.run("DROP OWNED BY lodger CASCADE; DROP ROLE lodger")


@pytest.mark.parametrize("whose, level", [("ROLE lodger", "serializable"), ("DATABASE", "repeatable read")])
def test_the_job_at_another_isolation_level(db, expected, whose, level):
    whose = whose if whose != "DATABASE" else f'DATABASE "{db.database}"'
    db.run(f"ALTER {whose} SET default_transaction_isolation = '{level}'")
    try:
        client = db.another("lodger")
        assert client.value("SHOW transaction_isolation") == level
        job(client, "lodger")
        client.close()
        assert outcome(db, "lodger") == expected
    finally:
        db.run(f"ALTER {whose} RESET default_transaction_isolation")


@pytest.mark.parametrize("level", ["read committed", "serializable"])
def test_what_is_rolled_back_leaves_no_table(db, expected, level):
    client = db.another("lodger")
    client.run("SET pg_mop.threads = 1; SET pg_mop.kernel = 'plain'")
    client.run(f"BEGIN ISOLATION LEVEL {level.upper()}")
    client.run(
        "SELECT madlib.madlib_keras_fit_multiple_model('lodger.packed', 'lodger.taken_back', 'lodger.mst', 1, FALSE)"
    )
    assert client.value("SELECT count(*) FROM lodger.taken_back") == 2
    client.run("ROLLBACK")
    assert client.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'taken_back%'") == 0
    # the session goes on, and so does its role
    client.run("SELECT madlib.madlib_keras_fit_multiple_model('lodger.packed', 'lodger.kept', 'lodger.mst', 1, FALSE)")
    assert client.value("SELECT count(*) FROM lodger.kept") == 2
    client.run("DROP TABLE lodger.kept, lodger.kept_info, lodger.kept_summary")
    client.close()
