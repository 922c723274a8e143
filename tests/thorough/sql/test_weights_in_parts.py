"""Weights that are too large for one value are kept in parts, and every function that reads weights copes.

The tests lower pg_mop.weights_value_mb to 1 MB. Each has a twin that was made with the default, where the same weights are
one value.
"""

import io
import zipfile

import h5py
import numpy as np
import pytest

from pg_mop.backend.weights import Reference, digest_of
from support.workload import ADAM, alike, dense, fit, layer, load, make_data, selection, sequential

WHOLE, PARTS = "RESET pg_mop.weights_value_mb", "SET pg_mop.weights_value_mb = 1"
BIG = 4 * (4 * 1500 + 1500 + 1500 * 1500 + 1500 + 1500 * 3 + 3)  # bytes: more than one part
JOINED = "SELECT string_agg(data, '' ORDER BY part) FROM {}_parts WHERE digest = %s"
DROPS = "DROP TABLE IF EXISTS {0}, {0}_info, {0}_summary, {0}_parts"


def big(width=1500):
    hidden = [layer("Dense", name=f"d{i}", units=width, activation="tanh") for i in range(2)]
    return sequential("big", [4], *hidden, layer("Dense", name="o", units=3, activation="softmax"))


def trained(db, output, iterations=1, mst="mst"):
    db.run(DROPS.format(output))
    return fit(db, "flowers_packed", output, mst, iterations)


def weights(db, table, key=None, column="mst_key"):
    """The weights of a model, of one value or joined from its parts."""
    where = "" if key is None else f" WHERE {column} = {key}"
    value = bytes(db.value(f"SELECT model_weights FROM {table}{where}"))
    reference = Reference.read(value)
    if reference is None:
        return value
    whole = bytes(db.value(JOINED.format(table), [reference.digest]))
    assert len(whole) == reference.size
    return whole


def is_in_parts(db, table, where=""):
    return Reference.read(bytes(db.value(f"SELECT model_weights FROM {table} {where}"))) is not None


@pytest.fixture(scope="module")
def data(db):
    # (the order of visits of round-robin depends on the seed alone)
    db.run("SET pg_mop.scheduler = 'round-robin'")
    make_data(db, then="SET pg_mop.kernel = 'plain'; SET pg_mop.threads = 1; SET pg_mop.reuse = off")
    load(db, "arch", big(), dense())
    rate = ADAM.format(0.001)
    selection(db, "mst", "arch", [(1, rate, "batch_size=20"), (2, rate, "batch_size=20")])
    selection(db, "one_mst", "arch", [(1, rate, "batch_size=20")])
    return db


@pytest.fixture(scope="module")
def models(data):
    """The same models: `whole`, each with one value, and `models`, the large one in parts. The number of the second's run."""
    db = data
    db.run(WHOLE)
    trained(db, "whole")
    db.run(PARTS)
    run_id = trained(db, "models")
    db.run(WHOLE)
    return run_id


def test_large_weights_are_in_parts_and_small_ones_one_value(db, models):
    assert weights(db, "models", 1) == weights(db, "whole", 1) and len(weights(db, "models", 1)) == BIG
    assert is_in_parts(db, "models", "WHERE mst_key = 1") and not is_in_parts(db, "whole", "WHERE mst_key = 1")
    assert db.value(
        "SELECT a.model_weights = b.model_weights FROM models a JOIN whole b USING (mst_key) WHERE mst_key = 2"
    )
    assert db.run("SELECT part, octet_length(data) AS size FROM models_parts ORDER BY 1") == [
        {"part": 0, "size": 8 << 20},
        {"part": 1, "size": BIG - (8 << 20)},
    ]
    sizes = "SELECT mst_key, model_size, training_loss_final FROM {}_info ORDER BY 1"
    assert db.run(sizes.format("models")) == db.run(sizes.format("whole"))
    assert db.value("SELECT to_regclass('whole_parts')") is None, "nothing is made that nothing needs"


def test_the_digest_is_that_of_the_parts(db, models):
    digest = Reference.read(bytes(db.value("SELECT model_weights FROM models WHERE mst_key = 1"))).digest
    rows = db.run("SELECT digest, md5(data) AS own FROM models_parts ORDER BY part")
    assert {row["digest"] for row in rows} == {digest} and digest_of([row["own"] for row in rows]) == digest


def test_they_are_evaluated_and_predicted_with(db, models):
    for table in ("models", "whole"):
        db.run(f"DROP TABLE IF EXISTS score_{table}, guess_{table}, alone_{table}")
        db.run(f"SELECT madlib.madlib_keras_evaluate('{table}', 'flowers_packed', 'score_{table}', FALSE, 1)")
        db.run(
            f"SELECT madlib.madlib_keras_predict('{table}', 'flowers', 'id', 'x', 'guess_{table}', 'prob', FALSE, 1)"
        )
        db.run("CREATE TEMPORARY TABLE IF NOT EXISTS here AS TABLE flowers")
        # in the caller's own session
        db.run(f"SELECT madlib.madlib_keras_evaluate('{table}', 'here', 'alone_{table}', FALSE, 1)")
    for kind, order in (("score", "1"), ("guess", "id, class_value"), ("alone", "1")):
        theirs = db.run(f"SELECT * FROM {kind}_whole ORDER BY {order}")
        assert db.run(f"SELECT * FROM {kind}_models ORDER BY {order}") == alike(theirs), kind


def test_a_partitioned_table_is_predicted_by_worker_sessions(db, models):
    db.run(
        "DROP TABLE IF EXISTS split_rows, far_models, far_whole; CREATE TABLE split_rows (id integer, x real[]) "
        "PARTITION BY HASH (id); CREATE TABLE split_rows_0 PARTITION OF split_rows FOR VALUES WITH (MODULUS 2, REMAINDER 0); "
        "CREATE TABLE split_rows_1 PARTITION OF split_rows FOR VALUES WITH (MODULUS 2, REMAINDER 1); "
        "INSERT INTO split_rows SELECT id, x FROM flowers"
    )
    for table in ("models", "whole"):
        db.run(
            f"SELECT madlib.madlib_keras_predict('{table}', 'split_rows', 'id', 'x', 'far_{table}', 'prob', FALSE, 1)"
        )
    order = "ORDER BY id, class_value"
    assert db.run(f"SELECT * FROM far_models {order}") == alike(db.run(f"SELECT * FROM far_whole {order}"))


def test_the_file_of_keras_is_the_same_in_one_value_and_in_parts(db, models):
    def arrays(file):
        with (
            zipfile.ZipFile(io.BytesIO(file)) as archive,
            h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as h5,
        ):
            found = {}
            h5.visititems(lambda name, item: found.update({name: np.array(item)}) if hasattr(item, "shape") else None)
            return found

    ours = arrays(bytes(db.value("SELECT madlib.mop_export_model('models', 1)")))
    parts = db.run("SELECT part, data FROM madlib.mop_export_parts('models', 1) ORDER BY part")
    assert [row["part"] for row in parts] == [0, 1] and max(len(row["data"]) for row in parts) == 8 << 20
    theirs = arrays(bytes(db.value("SELECT madlib.mop_export_model('whole', 1)")))
    for found in (ours, arrays(b"".join(bytes(row["data"]) for row in parts))):
        assert found.keys() == theirs.keys()
        assert all(np.array_equal(found[name], theirs[name]) for name in found)


def test_a_warm_start_goes_on_from_parts(db, models):
    db.run(PARTS)
    for source in ("models", "whole"):
        db.run(DROPS.format(f"warm_{source}"))
        for end in ("", "_info", "_summary", *(["_parts"] if source == "models" else [])):
            db.run(f"CREATE TABLE warm_{source}{end} AS TABLE {source}{end}")
        db.run(
            "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', %s, 'mst', 1, FALSE, NULL, NULL, TRUE)",
            [f"warm_{source}"],
        )
    db.run(WHOLE)
    assert weights(db, "warm_models", 1) == weights(db, "warm_whole", 1) != weights(db, "models", 1)
    assert db.value("SELECT count(DISTINCT digest) FROM warm_models_parts") == 1, "the earlier parts are gone"
    assert db.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'pg_mop_old%'") == 0


def test_mop_more_trains_on_and_removes_the_parts_of_before(db, models):
    db.run(PARTS)
    run_id = trained(db, "longer", mst="one_mst")
    before = db.value("SELECT digest FROM longer_parts LIMIT 1")
    db.run("SELECT madlib.mop_more(%s, 1, 1)", [run_id])
    after = db.run("SELECT DISTINCT digest FROM longer_parts")
    assert len(after) == 1 and after[0]["digest"] != before
    db.run(WHOLE)
    more = trained(db, "longer_whole", mst="one_mst")
    db.run("SELECT madlib.mop_more(%s, 1, 1)", [more])
    assert weights(db, "longer", 1) == weights(db, "longer_whole", 1)
    # and back, with one value
    db.run("SELECT madlib.mop_more(%s, 1, 1)", [run_id])
    assert not is_in_parts(db, "longer") and db.value("SELECT count(*) FROM longer_parts") == 0


def test_one_model_averaged_and_its_warm_start(db, models):
    call = (
        "SELECT madlib.madlib_keras_fit('flowers_packed', %s, 'arch', 1, %s, 'batch_size=20', 1, FALSE, NULL, NULL, %s)"
    )
    for name, how in (("one", PARTS), ("one_whole", WHOLE)):
        db.run(f"{DROPS.format(name)}; {how}")
        for warm in (False, True):
            db.run(call, [name, ADAM.format(0.001), warm])
    assert is_in_parts(db, "one") and weights(db, "one") == weights(db, "one_whole")
    assert db.value("SELECT model_size FROM one_summary") == BIG / 1024
    db.run("DROP TABLE IF EXISTS one_guess")
    db.run("SELECT madlib.madlib_keras_predict('one', 'flowers', 'id', 'x', 'one_guess', 'response')")
    assert db.value("SELECT count(*) FROM one_guess") == 100


def test_an_architecture_table_takes_the_parts_along(db, models):
    """Transfer learning, and predictions with one's own model."""
    for own, source in (("own", "models"), ("own_whole", "whole")):
        db.run(f"DROP TABLE IF EXISTS {own}, {own}_parts, by_{own}")
        db.run(f"SELECT madlib.load_keras_model('{own}', model_arch, model_weights) FROM {source} WHERE mst_key = 1")
    call = "SELECT madlib.madlib_keras_predict_byom('{0}', 1, 'flowers', 'id', 'x', 'by_{0}', 'prob', FALSE)"
    error = db.error(call.format("own"))
    assert 'the weights of model_id 1 are in parts, but there is no table "public"."own_parts"' in str(error)
    assert 'CREATE TABLE "public"."own_parts" AS TABLE' in error.diag.message_hint
    selection(db, "own_mst", "own", [(1, ADAM.format(0.001), "batch_size=20")])
    assert "there is no table" in str(
        db.error("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'never', 'own_mst', 1, FALSE)")
    )
    db.run("CREATE TABLE own_parts AS TABLE models_parts")
    for own in ("own", "own_whole"):
        db.run(call.format(own))
        selection(db, "own_mst", own, [(1, ADAM.format(0.001), "batch_size=20")])
        trained(db, f"from_{own}", mst="own_mst")
    order = "ORDER BY id, class_value"
    assert db.run(f"SELECT * FROM by_own {order}") == alike(db.run(f"SELECT * FROM by_own_whole {order}"))
    assert weights(db, "from_own", 1) == weights(db, "from_own_whole", 1)


def test_a_search_starts_from_parts_and_writes_parts(db, models):
    db.run("DROP TABLE IF EXISTS own, own_parts")
    db.run("SELECT madlib.load_keras_model('own', model_arch, model_weights) FROM models WHERE mst_key = 1")
    db.run(f"CREATE TABLE own_parts AS TABLE models_parts; {DROPS.format('found')}, found_trials; {PARTS}")
    db.run(
        "SELECT madlib.mop_search('flowers_packed', 'found', 'own', $${'loss': ['categorical_crossentropy'], "
        "'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.001]}], 'batch_size': [20]}$$, 'random', "
        "'iterations=1, trials=1')"
    )
    db.run(WHOLE)
    assert is_in_parts(db, "found") and len(weights(db, "found", 1)) == BIG


# --- named models -------------------------------------------------------------------------------------


def test_a_named_model_has_its_parts_with_it(db, models):
    db.run("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN; GRANT mop_user TO reader")
    for name, source in (("named", "models"), ("named_whole", "whole")):
        db.run(f"DROP TABLE IF EXISTS {name}, {name}_parts")
        for _ in range(2):
            assert db.value("SELECT madlib.mop_deploy(%s, %s, 1)", [name, source]) > 0
    answers = "SELECT prediction, probability FROM madlib.mop_predict('{}', source => 'flowers')"
    assert db.run(answers.format("named")) == alike(db.run(answers.format("named_whole")))
    rows = db.run("SELECT bytes FROM madlib.mop_models WHERE name IN ('named', 'named_whole')")
    assert rows == [{"bytes": BIG}] * 4
    assert db.value("SELECT count(*) FROM named_parts") == 2, "equal weights are there once"
    db.run("GRANT SELECT ON flowers TO reader; SELECT madlib.mop_share('named', 'reader')")
    reader = db.another("reader")
    assert reader.run(answers.format("named")) == alike(db.run(answers.format("named_whole")))
    db.run("REVOKE SELECT ON named_parts FROM reader")
    reader.close()
    reader = db.another("reader")
    error = reader.error(answers.format("named"))
    assert "permission denied for table" in str(error) and "GRANT SELECT ON" in error.diag.message_hint
    # a policy on the parts would run with the reader's rights
    db.run(
        "GRANT SELECT ON named_parts TO reader; ALTER TABLE named OWNER TO mop_user; ALTER TABLE named_parts OWNER TO mop_user"
    )
    db.run("ALTER TABLE named_parts ENABLE ROW LEVEL SECURITY; CREATE POLICY all_rows ON named_parts USING (true)")
    assert "of another role has policies" in str(reader.error(answers.format("named")))
    reader.close()
    db.run("DROP TABLE named, named_parts; DROP OWNED BY reader; DROP ROLE reader")


def test_a_trained_and_retrained_model_has_parts(db, data):
    db.run("CREATE TABLE IF NOT EXISTS people AS SELECT i AS id, i % 60 AS age, i % 7 AS b, i % 60 > 30 AS old "
           f"FROM generate_series(1, 200) i; {PARTS}")  # fmt: skip
    db.run(
        "SELECT madlib.mop_train('people', 'aged', target => 'old', id => 'id', layers => '520x520', max_trials => 1, "
        "time_limit => '30 s', baselines => FALSE, ensemble => 1, families => 'nets')"
    )
    assert is_in_parts(db, "aged")
    db.run("SELECT madlib.mop_retrain('aged', warm => TRUE, time_limit => '30 s')")
    db.run(WHOLE)
    assert db.value("SELECT count(*) FROM aged") == 2 and db.value("SELECT count(DISTINCT digest) FROM aged_parts") == 2
    left = db.run("SELECT relname FROM pg_class WHERE relname LIKE 'aged%%parts' AND relkind = 'r'")
    assert left == [{"relname": "aged_parts"}], "those of the steps are dropped"
    assert db.value("SELECT count(*) FROM madlib.mop_predict('aged', source => 'people', version => 2)") == 200
    report = db.value("SELECT madlib.mop_model_report('aged', NULL, 'json')")
    size = Reference.read(bytes(db.value("SELECT model_weights FROM aged WHERE in_use"))).size
    assert f'"bytes of weights": "{size}"' in report


# --- bad input ----------------------------------------------------------------------------------------


def copies(db, name):
    db.run(DROPS.format(name))
    for end in ("", "_info", "_summary", "_parts"):
        db.run(f"CREATE TABLE {name}{end} AS TABLE models{end}")


PREDICT = "SELECT madlib.madlib_keras_predict('hurt', 'flowers', 'id', 'x', 'never', 'prob', FALSE, 1)"


@pytest.mark.parametrize(
    "hurt,text",
    [
        ("DROP TABLE hurt_parts", "there is no table"),
        ("DELETE FROM hurt_parts WHERE part = 1", "are incomplete"),
        ("UPDATE hurt_parts SET data = set_byte(data, 7, get_byte(data, 7) # 1) WHERE part = 1", "are incomplete"),
        ("UPDATE hurt_parts SET part = 1 - part", "are incomplete"),
        ("UPDATE hurt_parts SET digest = 'x'", "are incomplete"),
        ("ALTER TABLE hurt_parts RENAME data TO bytes", "is no table of the weights' parts"),
        (
            "ALTER TABLE hurt_parts RENAME TO other; CREATE VIEW hurt_parts AS TABLE other",
            "is no table of the weights' parts",
        ),
    ],
)
def test_parts_that_are_not_whole_are_refused(db, models, hurt, text):
    if db.value("SELECT relkind FROM pg_class WHERE relname = 'hurt_parts'") == "v":
        db.run("DROP VIEW hurt_parts")
    copies(db, "hurt")
    db.run(f"DROP TABLE IF EXISTS other CASCADE; {hurt}")
    for call in (
        PREDICT,
        "SELECT madlib.mop_export_model('hurt', 1)",
        "SELECT madlib.mop_deploy('hurt_named', 'hurt', 1)",
        "SELECT madlib.madlib_keras_evaluate('hurt', 'flowers_packed', 'never', FALSE, 1)",
        "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'hurt', 'mst', 1, FALSE, NULL, NULL, TRUE)",
    ):
        error = db.error(call)
        assert text in str(error) and "hurt_parts" in f"{error} {error.diag.message_detail}", call
    assert db.value("SELECT count(*) FROM madlib.mop_runs WHERE status = 'running'") == 0


def test_a_relation_of_the_name_of_the_parts_is_in_the_way(db, data):
    db.run(f"{DROPS.format('taken')}; CREATE TABLE taken_parts (part text)")
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'taken', 'mst', 1, FALSE)")
    assert 'output table "taken_parts" already exists' in str(error)
    assert 'DROP TABLE "public"."taken_parts"' in error.diag.message_hint
    db.run("DROP TABLE taken_parts")
