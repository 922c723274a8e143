"""Ordinary tables: what is packed, how rows are split, what named models answer, and who may ask."""

import json

import numpy as np
import pytest

ROWS = 400


@pytest.fixture(scope="module")
def shop(db):
    """A table with a column of each kind, and a named model of it."""
    db.run("SET search_path = public, madlib; SET pg_mop.seed = 7; CREATE TYPE size AS ENUM ('s', 'm', 'l')")
    db.run(
        "CREATE TABLE orders AS SELECT i AS id, (i * 37 % 101)::float8 AS price, "
        "CASE WHEN i % 9 > 0 THEN (i * 13 % 50)::numeric(6, 1) END AS discount, "
        "(ARRAY['s', 'm', 'l'])[1 + i % 3]::size AS size, "
        "i % 4 = 0 AS gift, 'town ' || i % 60 AS town, date '2024-01-01' + i % 200 AS placed, "
        "ARRAY[i % 5, 1]::real[] AS vec, "
        "jsonb_build_object('a', jsonb_build_object('b', i % 7)) AS payload, "
        "'a note about the order ' || i || ' of ' || (ARRAY['fish', 'bread'])[1 + i % 2] AS note, "
        "CASE WHEN i * 37 % 101 + 30 * (i % 2) > 60 THEN 'high' ELSE 'low' END AS label "
        f"FROM generate_series(1, {ROWS}) i; ALTER TABLE orders ADD PRIMARY KEY (id)"
    )
    db.run(
        "SELECT mop_pack('orders', 'packed', target => 'label', id => 'id', "
        """transform => '{"payload->a->b": "number", "discount": "minmax"}')"""
    )
    db.run("SELECT mop_architecture('nets', 'packed', 'small')")
    db.run(
        "SELECT madlib_keras_fit('packed', 'fitted', 'nets', 1, $$loss='categorical_crossentropy', "
        "optimizer='Adam(lr=0.01)', metrics=['accuracy']$$, 'batch_size=32, epochs=1', 8)"
    )
    assert db.value("SELECT mop_deploy('order_model', 'fitted')") == 1
    return db


def test_the_packed_numbers_are_those_of_numpy(shop):
    shop.run(
        "SELECT mop_pack('SELECT price, discount, gift, label FROM orders', 'plain', target => 'label', "
        "buffer_size => 1000)"
    )
    packed = np.concatenate(
        [
            np.frombuffer(bytes(r["features"]), "<f4").reshape(r["features_shape"])
            for r in shop.run("SELECT features, features_shape FROM plain ORDER BY buffer_id")
        ]
    )
    raw = shop.run("SELECT price, discount::float8 AS discount, gift FROM orders")
    price = np.array([r["price"] for r in raw])
    discount = np.array([np.nan if r["discount"] is None else r["discount"] for r in raw])
    wanted = np.stack(
        [
            (price - price.mean()) / price.std(),
            np.nan_to_num((discount - np.nanmean(discount)) / np.nanstd(discount)),
            np.isnan(discount),
            [float(r["gift"]) for r in raw],
        ],
        1,
    )
    order = np.lexsort(packed.T.round(4)), np.lexsort(wanted.astype("<f4").T.round(4))
    assert packed[order[0]] == pytest.approx(wanted[order[1]], abs=1e-5)


def test_the_same_seed_packs_the_same_bytes(shop):
    for name in ("one", "two"):
        shop.run(f"SELECT mop_pack('orders', '{name}', target => 'label', id => 'id')")
    assert shop.value(
        "SELECT (SELECT md5(string_agg(features || codes || label, '' ORDER BY buffer_id)) FROM one) = "
        "(SELECT md5(string_agg(features || codes || label, '' ORDER BY buffer_id)) FROM two)"
    )


def test_validation_rows_have_the_transform_of_training(shop):
    shop.run("SELECT mop_pack('SELECT * FROM orders WHERE id <= 20', 'checked', fitted_on => 'packed')")
    assert shop.value(
        "SELECT a.__transform__::json->>'inputs' = b.__transform__::json->>'inputs' FROM packed_summary a, "
        "checked_summary b"
    )
    error = shop.error("SELECT mop_pack('SELECT id, label FROM orders', 'no', fitted_on => 'packed')")
    assert "of the training rows does not exist" in str(error)
    error = shop.error(
        "SELECT mop_pack('SELECT *, price::text AS p FROM orders', 'no', fitted_on => 'packed', target => 'p')"
    )
    assert "no subset of those of training" in str(error)


def test_what_became_of_each_column(shop):
    found = {r["column_name"]: r["feature"] for r in shop.run("SELECT * FROM mop_feature_info('packed')")}
    assert found["price"] == "number, standard" and found["discount"] == "number, minmax, NULL indicator"
    assert found["size"] == "one-hot, 4 classes" and found["town"] == "code for an embedding, 61 classes"
    assert found["placed"].startswith("time: age, year, weekday") and found["note"].endswith("words")
    assert found["payload->a->b"] == "number, standard" and found["vec"] == "array of [2]" and "id" not in found


@pytest.mark.parametrize(
    "method, by", [("random", None), ("stratified", "label"), ("group", "town"), ("time", "placed")]
)
def test_parts_are_disjoint_complete_and_independent_of_settings(shop, method, by):
    name = f"part_{method}"
    shop.run("SELECT * FROM mop_split('orders', %s, method => %s, by => %s)", [name, method, by])
    parts = [{r["id"] for r in shop.run(f"SELECT id FROM {name}_{part}")} for part in ("train", "valid", "test")]
    assert sum(map(len, parts)) == ROWS == len(set.union(*parts))
    assert 0.05 * ROWS < len(parts[2]) < 0.45 * ROWS  # (60 groups vary)
    if method == "group":
        towns = [{r["town"] for r in shop.run(f"SELECT town FROM {name}_{part}")} for part in ("train", "test")]
        assert not towns[0] & towns[1]
    if method == "time":
        assert shop.value(f"SELECT (SELECT max(placed) FROM {name}_train) < (SELECT min(placed) FROM {name}_test)")
    other = shop.another()
    other.run("SET DateStyle = 'German'; SET extra_float_digits = -10; SET TimeZone = 'Asia/Tokyo'")
    assert {r["id"] for r in other.run(f"SELECT id FROM {name}_test")} == parts[2]
    other.close()


def test_a_row_a_table_and_an_output_table_have_the_same_answers(shop):
    rows = {
        r["id"]: r
        for r in shop.run("SELECT t.id, p.* FROM (SELECT * FROM orders LIMIT 20) t, mop_predict('order_model', t) AS p")
    }
    table = {
        r["kept"]["id"]: r
        for r in shop.run("SELECT * FROM mop_predict('order_model', source => 'orders', keep => 'id')")
    }
    assert shop.value("SELECT mop_predict_into('order_model', 'orders', 'answers', keep => 'id, size, placed')") == ROWS
    into = {r["id"]: r for r in shop.run("SELECT * FROM answers")}
    assert len(table) == len(into) == ROWS and len(rows) == 20
    for key, row in rows.items():
        for other in (table[key], into[key]):
            assert other["prediction"] == row["prediction"]
            assert other["probability"] == pytest.approx(row["probability"], abs=1e-5)
        assert set(row["probabilities"]) == {"high", "low"}
    kinds = {
        r["column_name"]: r["data_type"]
        for r in shop.run("SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'answers'")
    }
    assert kinds["size"] == "USER-DEFINED" and kinds["placed"] == "date" and kinds["prediction"] == "text"


def test_a_long_source_is_answered_in_parts(shop):
    ask = "mop_predict('order_model', source => '{}', keep => 'id')"
    many = "SELECT o.* FROM orders o, generate_series(1, 60) ORDER BY id"
    assert shop.value(f"SELECT count(*) = {60 * ROWS} AND count(prediction) = count(*) FROM {ask.format(many)}")
    # an error in a later part, of a source, and a cursor that is closed early leave nothing behind
    late = "SELECT o.* FROM orders o JOIN generate_series(1, 60) n ON o.id / (n - 59) IS NOT NULL"
    assert "division by zero" in str(shop.error(f"SELECT count(*) FROM {ask.format(late)}"))
    shop.run(f"BEGIN; DECLARE c CURSOR FOR SELECT * FROM {ask.format(many)}")
    shop.run("FETCH 5 FROM c; CLOSE c; COMMIT")
    # sources that are read at the same time
    within = ask.format("orders").replace("'", "''")
    assert (
        shop.value(
            f"SELECT count(*) FROM {ask.format('orders')} a JOIN {ask.format('orders')} b ON a.kept = b.kept WHERE a = b"
        )
        == ROWS
        == shop.value(
            f"SELECT count(*) FROM mop_predict('order_model', source => 'SELECT o.*, p.prediction FROM orders o "
            f"JOIN {within} p ON p.kept = jsonb_build_object(''id'', o.id)')"
        )
    )
    assert "no source is open" in str(shop.error("SELECT * FROM mop_predict_rows(77)"))
    # a query that needs no row asks nothing
    for nothing in ("LIMIT 0", "WHERE false"):
        assert shop.run(f"SELECT * FROM mop_predict('no_such_model', source => 'orders') {nothing}") == []


def test_the_model_has_learnt_something_and_reports_agree_with_answers(shop):
    right = shop.value("SELECT avg((o.label = a.prediction)::int)::float8 FROM orders o JOIN answers a USING (id)")
    found = {r["metric"]: r["value"] for r in shop.run("SELECT * FROM mop_evaluate('order_model', 'orders')")}
    assert right > 0.8 and found["accuracy"] == pytest.approx(right) and found["rows"] == ROWS
    assert shop.value(
        "SELECT (sum(row_count) FILTER (WHERE actual = predicted) / sum(row_count))::float8 FROM "
        "mop_confusion_matrix('order_model', 'orders')"
    ) == pytest.approx(right, abs=1e-6)
    worth = {
        r["column_name"]: r["importance"] for r in shop.run("SELECT * FROM mop_importance('order_model', 'orders')")
    }
    assert worth["price"] > 0.05 and worth["price"] > worth["vec"]
    drift = {
        r["column_name"]: r
        for r in shop.run(
            "SELECT * FROM mop_drift('order_model', 'SELECT price + 80 AS price, size, gift FROM orders')"
        )
    }
    assert drift["price"]["verdict"] == "drifted" and drift["size"]["verdict"] == "stable"
    assert drift["town"]["null_share_now"] == 1


def test_columns_go_by_name_and_unknown_values_are_tolerated(shop):
    (plain,) = shop.run("SELECT p.* FROM (SELECT * FROM orders WHERE id = 5) t, mop_predict('order_model', t) AS p")
    (turned,) = shop.run(
        "SELECT p.* FROM (SELECT note, 1 AS more, payload, vec, placed, town, gift, size, discount, price "
        "FROM orders WHERE id = 5) t, mop_predict('order_model', t) AS p"
    )
    assert plain == turned
    (strange,) = shop.run(
        "SELECT p.* FROM (SELECT 'xl' AS size, 'nowhere' AS town, ARRAY[1, 1] AS vec) t, "
        "mop_predict('order_model', t) AS p"
    )
    assert strange["prediction"] in ("high", "low")
    del shop.connection.notices[:]
    shop.run(
        "SELECT * FROM mop_predict('order_model', source => $$SELECT 'nowhere' AS town, ARRAY[1, 1]::real[] AS vec$$)"
    )
    told = "".join(shop.connection.notices)
    assert "columns of training rows are missing" in told and "has values that training rows did not have" in told
    assert "has type text, but" in str(
        shop.error("SELECT * FROM mop_predict('order_model', source => 'SELECT ''1''::text AS price FROM orders')")
    )


def test_rows_that_lack_columns_of_training_are_told_once_a_statement(shop):
    for _ in range(2):
        del shop.connection.notices[:]
        shop.run("SELECT p.* FROM (SELECT price, vec FROM orders LIMIT 5) t, mop_predict('order_model', t) AS p")
        (told,) = [notice for notice in shop.connection.notices if "missing" in notice]
        assert "7 columns of training rows are missing" in told


@pytest.mark.parametrize(
    "source, fragment",
    [
        ("SELECT 1 AS x, 2 AS y", "the rows have none of the columns that model"),
        ("SELECT price, gift FROM orders LIMIT 1", 'column "vec" is missing'),
        ("SELECT a.price, b.price, b.vec FROM orders a JOIN orders b USING (id)", 'two columns "price"'),
    ],
)
def test_rows_that_say_nothing_or_are_ambiguous_are_errors(shop, source, fragment):
    assert fragment in str(shop.error(f"SELECT * FROM mop_predict('order_model', source => '{source}')"))
    if "JOIN" not in source:
        assert fragment in str(shop.error(f"SELECT p.* FROM ({source}) t, mop_predict('order_model', t) AS p"))


@pytest.mark.parametrize(
    "row, fragment",
    [
        ('{"a": ["price", "size", "placed", "vec"]}', "the rows have none of the columns"),
        ('{"a": {"price": 1, "vec": [1, 2]}}', "the rows have none of the columns"),
        ('{"price" : 1, "a": {"vec": [1, 2]}}', 'column "vec" is missing'),
    ],
)
def test_texts_and_fields_in_json_are_no_columns(shop, row, fragment):
    for prepared in ('{"vec": [1, 2], "price": 1}', None):  # without and with a kept plan
        assert fragment in str(shop.error("SELECT mop_class('order_model', %s::json)", [row]))
        if prepared:
            shop.run("SELECT mop_class('order_model', %s::json)", [prepared])


def test_a_deep_value_of_no_column_hinders_nothing(shop):
    row = '{"vec" : [1, 2], "a": ' + "[" * 1500 + "]" * 1500 + "}"
    assert shop.value("SELECT mop_class('order_model', %s::json)", [row]) is not None


def test_no_hint_drops_a_model(shop):
    error = shop.error("SELECT mop_predict_into('order_model', 'orders', 'order_model')")
    assert "already exists" in str(error) and "DROP" not in str(error.diag.message_hint)


@pytest.mark.parametrize("factor, size", [(500, (0.9, 1.1)), (0.001, (0.9, 1.1)), (1, (1.8, 2.0))])
def test_arrays_of_large_or_small_numbers_are_scaled(shop, factor, size):
    shop.run(
        f"SELECT mop_pack('SELECT ARRAY[vec[1] * {factor}, vec[2] * {factor}]::real[] AS vec, label FROM orders', "
        "'sized', target => 'label'); "
    )
    rows = shop.run("SELECT vec FROM sized")
    packed = np.concatenate([np.frombuffer(bytes(row["vec"]), "<f4") for row in rows])
    assert size[0] < np.sqrt((packed**2).mean()) < size[1]
    shop.run("DROP TABLE sized, sized_summary")


@pytest.mark.parametrize("element", ["1e-200::float8", "1e-50::float8", "1e400::numeric", "'NaN'::float8"])
def test_an_element_beyond_real_is_told_as_such(shop, element):
    error = shop.error(
        f"SELECT mop_pack('SELECT ARRAY[{element}] AS v, label FROM orders', 'sized', target => 'label')".replace(
            "'NaN'", "''NaN''"
        )
    )
    assert 'column "v" has NaN, an infinity or a number beyond type real' in str(error)


def test_answers_in_a_view_a_function_a_trigger_and_a_read_only_transaction(shop):
    shop.run(
        "CREATE VIEW answered AS SELECT t.id, p.prediction FROM orders t, madlib.mop_predict('order_model', t) AS p "
        "WHERE t.id < 4"
    )
    wanted = shop.run("SELECT id, prediction FROM answers WHERE id < 4 ORDER BY 1")
    assert shop.run("SELECT * FROM answered ORDER BY 1") == wanted
    shop.run(
        "CREATE FUNCTION answer(t orders) RETURNS text STABLE LANGUAGE sql AS $$ SELECT prediction FROM "
        "madlib.mop_predict('order_model', t) $$"
    )
    assert shop.run("SELECT id, answer(orders) AS prediction FROM orders WHERE id < 4 ORDER BY 1") == wanted
    shop.run(
        "CREATE TABLE incoming (LIKE orders); ALTER TABLE incoming ADD said text; CREATE FUNCTION say() RETURNS trigger "
        "LANGUAGE plpgsql AS $$ BEGIN NEW.said := (SELECT prediction FROM madlib.mop_predict('order_model', NEW)); "
        "RETURN NEW; END $$; CREATE TRIGGER say BEFORE INSERT ON incoming FOR EACH ROW EXECUTE FUNCTION say(); "
        "INSERT INTO incoming SELECT * FROM orders WHERE id < 4"
    )
    assert shop.run("SELECT id, said AS prediction FROM incoming ORDER BY 1") == wanted
    shop.run("BEGIN READ ONLY")
    assert shop.run("SELECT * FROM answered ORDER BY 1") == wanted
    assert shop.value("SELECT count(*) FROM mop_predict('order_model', source => 'SELECT * FROM orders LIMIT 3')") == 3
    shop.run("COMMIT")


def test_versions_switch_at_commit(shop):
    assert shop.value("SELECT mop_deploy('order_model', 'fitted', description => 'again')") == 2
    reader = shop.another()
    in_use = "SELECT version FROM madlib.mop_models WHERE name = 'order_model' AND in_use"
    assert reader.value(in_use) == 2
    shop.run("BEGIN; SELECT mop_use_version('order_model', 1)")
    assert reader.value(in_use) == 2
    shop.run("COMMIT")
    assert reader.value(in_use) == 1
    reader.close()
    assert "has no version 9" in str(shop.error("SELECT mop_use_version('order_model', 9)"))
    assert "has no version 9" in str(
        shop.error("SELECT * FROM mop_predict('order_model', source => 'orders', version => 9)")
    )


def test_another_role_predicts_once_the_model_is_shared_and_no_more(shop):
    shop.run(
        "DROP ROLE IF EXISTS reader_of_models; CREATE ROLE reader_of_models LOGIN; GRANT mop_user TO reader_of_models; "
        "GRANT SELECT ON orders TO reader_of_models; GRANT USAGE ON SCHEMA public TO reader_of_models"
    )
    other = shop.another("reader_of_models")
    other.run("SET search_path = public, madlib")
    ask = "SELECT p.prediction FROM (SELECT * FROM orders LIMIT 1) t, mop_predict('order_model', t) AS p"
    assert "permission denied for model" in str(other.error(ask))
    assert other.run("SELECT * FROM mop_models") == []
    shop.run("SELECT mop_share('order_model', 'reader_of_models')")
    assert other.value(ask) in ("high", "low") and other.value("SELECT count(*) FROM mop_models") == 2
    for change in (
        "SELECT mop_use_version('order_model', 2)",
        "DELETE FROM order_model",
        "SELECT mop_deploy('order_model', 'fitted')",
    ):
        assert "permission denied" in str(other.error(change))
    other.close()
    assert 'role "nobody_here" does not exist' in str(shop.error("SELECT mop_share('order_model', 'nobody_here')"))


def test_a_hostile_model_executes_nothing(shop):
    """Names, paths and types in the transform of somebody else's model are data."""
    shop.run(
        "CREATE TABLE trap (seen text); CREATE FUNCTION public.evil() RETURNS float8 LANGUAGE sql AS "
        "$$ INSERT INTO trap VALUES (current_user) RETURNING 1.0 $$"
    )
    text = shop.value("SELECT transform::text FROM order_model WHERE version = 1")
    code = "public.evil()"
    changes = [
        lambda f: f["parameters"].update(sql_type=code),
        lambda f: f["parameters"].update(column=f'x" + {code} + "'),
        lambda f: f["parameters"].update(path=[f"a', {code}, '"]),
        lambda f: f.update(name=code),
        lambda f: f.update(type="os.system"),
    ]
    for number, change in enumerate(changes):
        transform = json.loads(text)
        change(transform["inputs"][0]["parameters"]["features"][0])
        name = f"hostile_{number}"
        shop.run(f"CREATE TABLE {name} AS SELECT * FROM order_model WHERE version = 1")
        shop.run(f"UPDATE {name} SET in_use = true, transform = %s", [json.dumps(transform)])
        for ask in (
            f"SELECT p.* FROM (SELECT * FROM orders LIMIT 1) t, mop_predict('{name}', t) AS p",
            f"SELECT * FROM mop_predict('{name}', source => 'SELECT * FROM orders LIMIT 1')",
        ):
            try:
                shop.run(ask)
            except Exception:
                shop.run("ROLLBACK")
    assert shop.value("SELECT count(*) FROM trap") == 0


@pytest.mark.parametrize(
    "call, fragment",
    [
        ("'orders', 'no'", "no target is named"),
        ("'orders', 'no', target => 'nothing'", 'column "nothing" does not exist'),
        ("'SELECT id, 1 AS one FROM orders', 'no', target => 'one'", "the same value in all"),
        ("'SELECT price, id::text AS t FROM orders', 'no', target => 't'", "another value in each of"),
        ("'SELECT price, NULL::text AS t FROM orders', 'no', target => 't'", "NULL in all rows"),
        (
            "'SELECT label, 1e300::float8 AS big FROM orders', 'no', target => 'label'",
            "no column is left to predict from",
        ),
        (
            "'SELECT label, 1e400::numeric AS big FROM orders', 'no', target => 'label', transform => '{\"big\": \"log\"}'",
            'column "big" has no number up to',
        ),
        ("'SELECT label FROM orders', 'no', target => 'label'", "no column is left to predict from"),
        ("'orders', 'no', target => 'label', kind => 'regression'", "which is no number"),
        ("'orders', 'no', target => 'label', transform => '{\"town\": \"number\"}'", "cannot be packed as number"),
        ("'orders', 'no', target => 'label', on_null => 'panic'", "on_null must be one of"),
        ("'orders', 'no', target => 'label', on_null => 'refuse'", 'column "discount" is NULL in'),
        ("'SELECT * FROM orders LIMIT 0', 'no', target => 'label'", "returns no rows"),
        ("'orders', 'no', target => 'label, label'", "named twice"),
        ("'orders', 'no', target => 'label', max_categories => 0", "max_categories must be"),
        ("'orders', 'no', target => 'label', transform => '{\"vec\": {\"constant\": Infinity}}'", "no number of JSON"),
        ("'orders', 'no', target => 'label', transform => '{\"price\": \"log\", \"price\": \"none\"}'", "named twice"),
        ("'orders', 'no', target => 'label', transform => '{\"payload->\": \"number\"}'", "an empty key"),
        (
            "'orders', 'no', target => 'label', transform => '{\"payload->a\": \"number\", \"payload -> a\": \"text\"}'",
            "twice",
        ),
        (
            "'SELECT price, CASE WHEN id % 5 > 0 THEN id ELSE ''NaN''::float8 END AS y FROM orders', 'no', target => 'y'",
            "is no number in",
        ),
        (
            "'SELECT price, id % 2 AS a, nullif(id % 3, 0) AS y FROM orders', 'no', target => 'a, y', kind => 'regression'",
            "y IS NOT NULL",
        ),
    ],
)
def test_bad_input_names_what_is_wrong(shop, call, fragment):
    assert fragment in str(shop.error(f"SELECT mop_pack({call})"))
    assert not shop.value("SELECT to_regclass('no') IS NOT NULL")


def test_leaks_and_identifiers_get_a_warning(shop):
    del shop.connection.notices[:]
    shop.run(
        "SELECT mop_pack('SELECT id, price, upper(label) AS shouted, label FROM orders', 'leaky', target => 'label')"
    )
    told = "".join(shop.connection.notices)
    assert 'column "shouted" gives the target away' in told and 'column "id" looks like an identifier' in told


def test_packed_columns_find_free_names_and_nets_accept_them(shop):
    shop.run(
        "CREATE TABLE named AS SELECT i AS price, 'one of these long notes ' || i || ' ' || i * 7 AS features, "
        "ARRAY[i % 3, 1]::real[] AS \"a/b\", ARRAY[i % 2]::real[] AS codes_shape, 'town ' || i % 40 AS town, "
        "i % 2 = 0 AS dense FROM generate_series(1, 60) i"
    )
    shop.run("SELECT mop_pack('named', 'named_packed', target => 'dense')")
    found = shop.value("SELECT independent_varname FROM named_packed_summary")
    assert found == ["features_", "codes_", "features", "a/b", "codes_shape"]
    shop.run("SELECT mop_architecture('named_nets', 'named_packed', 'small')")
    shop.run(
        "SELECT madlib_keras_fit('named_packed', 'named_model', 'named_nets', 1, $$loss='categorical_crossentropy', "
        "optimizer='Adam()'$$, 'batch_size=8', 1)"
    )
    shop.run("SELECT mop_deploy('named_named', 'named_model')")
    assert shop.value("SELECT count(*) FROM mop_predict('named_named', source => 'named')") == 60


def test_domains_are_packed_as_their_base_types(shop):
    shop.run(
        "CREATE DOMAIN money_amount AS numeric CHECK (VALUE >= 0); CREATE DOMAIN word AS text; "
        "CREATE TABLE of_domains AS SELECT (i % 17)::money_amount AS paid, ('w' || i % 3)::word AS w, i % 2 = 0 AS y "
        "FROM generate_series(1, 60) i; SELECT mop_pack('of_domains', 'of_domains_packed', target => 'y')"
    )
    found = {r["column_name"]: r["feature"] for r in shop.run("SELECT * FROM mop_feature_info('of_domains_packed')")}
    assert found == {"paid": "number, standard", "w": "one-hot, 4 classes"}
    shop.run(
        "SELECT mop_pack('SELECT paid::text::int AS paid, w, y FROM of_domains', 'o_v', fitted_on => 'of_domains_packed')"
    )


def test_capitals_of_citext_do_not_count(shop):
    if not shop.value("SELECT count(*) FROM pg_available_extensions WHERE name = 'citext'"):
        pytest.skip("extension citext is not installed on this machine")
    shop.run(
        "CREATE EXTENSION citext; CREATE TABLE of_citext AS SELECT (ARRAY['a', 'A', 'b', 'B'])[1 + i % 4]::citext AS c, "
        "i % 3 = 0 AS y FROM generate_series(1, 60) i; SELECT mop_pack('of_citext', 'of_citext_packed', target => 'y')"
    )
    (found,) = shop.run("SELECT feature, top_values FROM mop_feature_info('of_citext_packed')")
    assert found["feature"] == "one-hot, 3 classes" and found["top_values"] == {"a": 30, "b": 30}


@pytest.fixture(scope="module")
def daily(shop):
    """A named model of columns of dates and numbers."""
    shop.run(
        "CREATE TABLE daily AS SELECT i AS id, date '2024-01-01' + i AS day, i % 13 AS n, (i % 7)::numeric AS v, "
        "('c' || i % 3)::char(4) AS code, i % 3 = 0 AS y FROM generate_series(1, 200) i; "
        "SELECT mop_pack('daily', 'daily_packed', target => 'y', id => 'id'); "
        "SELECT mop_architecture('daily_nets', 'daily_packed', 'small')"
    )
    shop.run(
        "SELECT madlib_keras_fit('daily_packed', 'daily_fitted', 'daily_nets', 1, $$loss='categorical_crossentropy', "
        "optimizer='Adam()'$$, 'batch_size=32', 2)"
    )
    shop.run("SELECT mop_deploy('daily_model', 'daily_fitted')")
    return shop


def test_a_source_that_asks_another_model_changes_no_answer(daily):
    daily.run(
        "INSERT INTO daily_model SELECT (jsonb_populate_record(m, jsonb_build_object('version', 1 + k, 'in_use', false, "
        "'model_arch', replace(m.model_arch::text, '\"softmax\"', '\"sparsemax\"')::jsonb, 'model_weights', "
        "CASE k WHEN 1 THEN m.model_weights ELSE decode(repeat('00', length(m.model_weights)), 'hex') END))).* "
        "FROM daily_model m, generate_series(1, 2) k WHERE version = 1"
    )
    assert (
        daily.value("SELECT count(*) FROM mop_models WHERE name = 'daily_model' AND computed_by LIKE 'trainer%'") == 2
    )
    total = "SELECT sum((probabilities->>'true')::float8) FROM mop_predict('daily_model', version => {}, source => $s${}$s$)"
    alone = daily.value(total.format(2, "daily"))
    within = "SELECT t.* FROM daily t WHERE mop_class('daily_model', t, {}) IS NOT NULL"
    nested = (
        "SELECT t.* FROM daily t, mop_predict('daily_model', source => 'SELECT * FROM daily LIMIT 1', version => {}) p"
    )
    for version in (1, 2, 3):
        for source in (within, nested):
            assert daily.value(total.format(2, source.format(version))) == pytest.approx(alone)
    assert daily.value(total.format(3, "daily")) != pytest.approx(alone)
    # a view's functions look up names by the caller's search_path
    daily.run("CREATE FUNCTION said(daily) RETURNS text LANGUAGE sql AS $$ SELECT mop_class('daily_model', $1) $$")
    daily.run("CREATE VIEW daily_said AS SELECT d.*, said(d) AS said FROM daily d")
    assert (
        daily.value(
            "SELECT count(kept->>'said') FROM mop_predict('daily_model', source => 'daily_said', keep => 'said')"
        )
        == 200
    )
    daily.run("DELETE FROM daily_model WHERE version > 1")


def test_bad_values_and_versions_are_named(daily):
    assert daily.value("SELECT computed_by FROM mop_models WHERE name = 'daily_model'") == "backend"
    for value, fragment in (
        ("'soon'::text AS day", 'column "day" has "soon"'),
        ("'x'::text AS n", 'column "n" has "x"'),
    ):
        error = daily.error(f"SELECT p.* FROM (SELECT {value}) t, mop_predict('daily_model', t) AS p")
        assert fragment in str(error)
    for version, fragment in (("2.5", "version must be an integer"), ("'NaN'", "version must be an integer")):
        error = daily.error(
            f"SELECT * FROM mop_predict('daily_model', source => 'daily', version => {version}::float8)"
        )
        assert fragment in str(error)


def test_a_right_on_the_columns_of_a_model_suffices(daily):
    daily.run(
        "DROP ROLE IF EXISTS reader_of_columns; CREATE ROLE reader_of_columns LOGIN; GRANT mop_user TO reader_of_columns; "
        "GRANT SELECT (day, n, v, code, y) ON daily TO reader_of_columns; "
        "SELECT mop_share('daily_model', 'reader_of_columns'); GRANT USAGE, CREATE ON SCHEMA public TO reader_of_columns"
    )
    other = daily.another("reader_of_columns")
    other.run("SET search_path = public, madlib")
    assert other.value("SELECT count(*) FROM mop_predict('daily_model', source => 'daily')") == 200
    assert other.value("SELECT count(*) FROM mop_evaluate('daily_model', 'daily')") > 1
    other.run(
        "SELECT mop_pack('SELECT day, n, y FROM daily', 'own_packed', target => 'y'); DROP TABLE own_packed, own_packed_summary"
    )
    assert 'permission denied for column "id"' in str(
        other.error("SELECT mop_pack('daily', 'own_packed', target => 'y')")
    )
    other.close()


@pytest.mark.parametrize("by", ["at", "f", "b", "d"])
def test_groups_by_any_type_stay_together_under_any_setting(shop, by):
    shop.run(
        "CREATE TABLE IF NOT EXISTS moments AS SELECT i AS id, timestamptz '2024-01-01 12:00+00' + (i % 50) * interval '1 h' "
        "AS at, (CASE WHEN i % 50 = 0 THEN -0.0 ELSE (i % 50) / 3.0 END)::float8 AS f, decode(lpad(to_hex(i % 50), 8, '0'), "
        "'hex') AS b, date '2024-01-01' + i % 50 AS d FROM generate_series(1, 300) i"
    )
    shop.run("SELECT * FROM mop_split('moments', %s, method => 'group', by => %s)", [f"moments_{by}", by])
    other = shop.another()
    other.run(
        "SET DateStyle = 'SQL, DMY'; SET extra_float_digits = -15; SET TimeZone = 'Asia/Tokyo'; SET bytea_output = 'escape'"
    )
    ids = f"SELECT id FROM moments_{by}_train ORDER BY 1"
    assert shop.run(ids) == other.run(ids)
    assert not shop.value(
        f"SELECT count(*) FROM (SELECT {by} FROM moments_{by}_train INTERSECT SELECT {by} FROM moments_{by}_test) t"
    )
    other.close()


# {rows of id 1 to 400: their time}: the rows of each part, and of none
TIMES = {
    "date '2024-01-01' + least(id / 34, 6) * 31": (135, 68, 197, 0),  # (the last month has half of the rows)
    "date '2024-01-01' + CASE WHEN id <= 320 THEN 0 WHEN id <= 360 THEN 31 ELSE 60 END": (320, 40, 40, 0),
    "CASE WHEN id <= 200 THEN date '2024-01-01' + id WHEN id % 2 = 0 THEN 'infinity' END": (120, 40, 40, 200),
    "CASE WHEN id <= 300 THEN id::float8 WHEN id % 2 = 0 THEN '-infinity' ELSE 'NaN' END": (180, 60, 60, 100),
    "timestamptz '2024-01-01 00:00+00' + id * interval '1 hour'": (240, 80, 80, 0),
}


@pytest.mark.parametrize("time", TIMES)
def test_parts_by_time_are_whole_values_and_each_has_one(shop, time):
    shop.run(f"DROP TABLE IF EXISTS timed CASCADE; CREATE TABLE timed AS SELECT id, {time} AS m FROM orders")
    del shop.connection.notices[:]
    found = shop.run("SELECT * FROM mop_split('timed', 'timed', method => 'time', by => 'm', id => 'id')")
    *parts, none = TIMES[time]
    assert [r["row_count"] for r in found] == parts
    assert (f"{none} rows are in no part" in "".join(shop.connection.notices)) == bool(none)
    later = "SELECT (SELECT max(m) FROM timed_{}) < (SELECT min(m) FROM timed_{})"
    assert shop.value(later.format("train", "valid")) and shop.value(later.format("valid", "test"))
    shop.run("DROP TABLE timed CASCADE")


def test_a_time_that_cannot_make_the_parts_is_an_error_that_says_why(shop):
    call = "SELECT * FROM mop_split('SELECT id, {} AS m FROM orders', 'no', method => 'time', by => 'm', id => 'id')"
    error = shop.error(call.format("placed::text"))
    assert "its order is not that of time" in str(error) and "::date" in error.diag.message_hint
    two = call.format("date ''2024-01-01'' + id % 2")
    error = shop.error(two)
    assert "2 different values, too few for 3 parts" in str(error) and "valid => 0" in error.diag.message_hint
    assert len(shop.run(two.replace("id => 'id'", "id => 'id', valid => 0"))) == 2


@pytest.mark.parametrize("method, kind", [("group", "text"), ("column", "boolean")])
def test_rows_without_a_group_or_a_part_are_told(shop, method, kind):
    made = f"(CASE WHEN id % 4 > 0 THEN (id % 8 > 3)::{kind} END) AS g"
    made = made.replace("(id % 8 > 3)", "(id % 7)") if method == "group" else made
    shop.run(f"CREATE TABLE lacking AS SELECT id, {made} FROM orders")
    del shop.connection.notices[:]
    found = shop.run(f"SELECT * FROM mop_split('lacking', 'lacking', method => '{method}', by => 'g', id => 'id')")
    assert sum(r["row_count"] for r in found) == ROWS * 3 / 4
    assert f"{ROWS // 4} rows are in no part" in "".join(shop.connection.notices)
    shop.run("DROP TABLE lacking CASCADE")


CLASSES = {  # type of the target: (two values that are equal and a third one; the first again in another type)
    "numeric": ("1.0", "1.00", "2", "float8"),
    "float8": ("0", "-0", "2", "numeric"),
    "timestamptz": ("2024-01-01 00:00+00", "2024-01-01 05:30+05:30", "2024-01-02 00:00+00", "timestamptz"),
    "citext": ("Yes", "yes", "no", "text"),
}


@pytest.mark.parametrize("sql_type", list(CLASSES))
def test_reports_know_classes_that_are_equal_and_differ_as_text(shop, sql_type):
    if sql_type == "citext":
        if not shop.value("SELECT count(*) FROM pg_available_extensions WHERE name = 'citext'"):
            pytest.skip("extension citext is not installed on this machine")
        shop.run("CREATE EXTENSION IF NOT EXISTS citext")
    first, second, third, other = CLASSES[sql_type]
    table = f"equal_{sql_type}"
    shop.run(
        f"CREATE TABLE {table} AS SELECT i AS id, i % 4 AS a, i % 3 AS b, (CASE i % 4 WHEN 0 THEN '{first}' WHEN 1 THEN "
        f"'{second}' ELSE '{third}' END)::{sql_type} AS y FROM generate_series(1, 120) i; "
        f"SELECT mop_pack('{table}', '{table}_packed', 'y', id => 'id', kind => 'classification')"
    )
    shop.run(
        f"SELECT mop_architecture('{table}_nets', '{table}_packed', 'linear'); "
        f"SELECT madlib_keras_fit('{table}_packed', '{table}_fitted', '{table}_nets', 1, "
        "$$loss='categorical_crossentropy', optimizer='Adam(lr=0.1)'$$, 'batch_size=16', 8)"
    )
    shop.run(f"SELECT mop_deploy('{table}_model', '{table}_fitted')")
    for source in (table, f"SELECT a, b, y::{other} AS y FROM {table}"):
        shop.run("SET timezone = 'Asia/Tokyo'")
        found = {
            r["metric"]: r["value"] for r in shop.run(f"SELECT * FROM mop_evaluate('{table}_model', $${source}$$)")
        }
        assert found["rows"] == 120 and found["accuracy"] > 0.95
        dropped = {
            r["column_name"]: r["importance"]
            for r in shop.run(f"SELECT * FROM mop_importance('{table}_model', $${source}$$)")
        }
        assert dropped["a"] > 0.2
    shop.run("RESET timezone")


def test_series_of_various_lengths_are_padded_and_masked(shop):
    shop.run(
        "CREATE TABLE readings AS SELECT i AS id, CASE WHEN i % 10 > 0 THEN (SELECT array_agg(((i % 2) * 3 + (i * k) % 5)"
        "::real) FROM generate_series(1, 1 + i % 12) k) END AS heat, (SELECT array_agg(ARRAY[k, i % 3]) FROM "
        "generate_series(1, 2 + i % 4) k) AS pairs, i % 2 = 0 AS y FROM generate_series(1, 200) i; "
        "UPDATE readings SET heat = ARRAY[1, NULL, 3] WHERE id = 1; UPDATE readings SET heat = '{}' WHERE id = 2"
    )
    shop.run(
        """SELECT mop_pack('readings', 'readings_packed', target => 'y', id => 'id', transform => '{"heat": "series"}')"""
    )
    found = {r["column_name"]: r for r in shop.run("SELECT * FROM mop_feature_info('readings_packed')")}
    assert found["heat"]["feature"] == "series of [12, 1]" and found["pairs"]["feature"] == "series of [5, 2]"
    assert found["heat"]["null_share"] == pytest.approx(0.1)
    shop.run("SELECT mop_architecture('readings_nets', 'readings_packed', 'small')")
    shop.run(
        "SELECT madlib_keras_fit('readings_packed', 'readings_fitted', 'readings_nets', 1, $$loss="
        "'categorical_crossentropy', optimizer='Adam(lr=0.02)', metrics=['accuracy']$$, 'batch_size=16', 12)"
    )
    shop.run("SELECT mop_deploy('readings_model', 'readings_fitted')")
    assert shop.value("SELECT computed_by FROM mop_models WHERE name = 'readings_model'").startswith("trainer: layer ")
    table = {
        r["kept"]["id"]: r
        for r in shop.run("SELECT * FROM mop_predict('readings_model', source => 'readings', keep => 'id')")
    }
    rows = shop.run("SELECT t.id, p.* FROM readings t, mop_predict('readings_model', t) AS p WHERE id < 30")
    for row in rows:
        assert row["probability"] == pytest.approx(table[row["id"]]["probability"], abs=1e-5)
    right = shop.value("SELECT value FROM mop_evaluate('readings_model', 'readings') WHERE metric = 'accuracy'")
    assert right > 0.75
    longer = "SELECT array_cat(ARRAY[9, 9]::real[], heat) AS heat, pairs FROM readings WHERE id = 11"
    (cut,) = shop.run(
        "SELECT * FROM mop_predict('readings_model', source => %s)", [longer]
    )  # (12 steps: the last ones count)
    assert cut["probability"] == pytest.approx(table[11]["probability"], abs=1e-5)
    error = shop.error(
        "SELECT * FROM mop_predict('readings_model', source => 'SELECT heat, ARRAY[ARRAY[1, 2, 3]] AS pairs FROM readings')"
    )
    assert "its series have 2 channels" in str(error)


@pytest.mark.parametrize(
    "columns, fragment",
    [
        ("ARRAY[ARRAY[ARRAY[i]]] AS x", "arrays of 3 to 3 dimensions"),
        ("CASE WHEN i % 2 = 0 THEN ARRAY[ARRAY[i]] ELSE ARRAY[ARRAY[i, i]] END AS x", "series of 1 to 2 channels"),
        ("NULL::real[] AS x", "has no array with an element"),
    ],
)
def test_arrays_that_are_no_series(shop, columns, fragment):
    query = f"SELECT {columns}, i % 3 = 0 AS y FROM generate_series(1, 50) i"
    error = shop.error("SELECT mop_pack(%s, 'no', target => 'y', transform => %s)", [query, '{"x": "series"}'])
    assert fragment in str(error)


def picture(shade, size, kind="PNG", mode="RGB"):
    """The bytes of a picture: a bright square on a dark ground, or the other way round."""
    import io

    from PIL import Image

    numbers = np.full((size, size), 40 if shade else 200, "u1")
    numbers[size // 4 : size // 2, size // 4 : size // 2] = 220 if shade else 10
    file = io.BytesIO()
    Image.fromarray(numbers).convert(mode).save(file, kind)
    return file.getvalue()


def test_images_are_decoded_in_the_trainer_and_resized(shop):
    shop.run("CREATE TABLE photos (id int PRIMARY KEY, photo bytea, y text)")
    for i in range(60):
        kind, mode = [("PNG", "RGB"), ("JPEG", "RGB"), ("PNG", "RGBA"), ("JPEG", "L"), ("PNG", "P")][i % 5]
        shop.run(
            "INSERT INTO photos VALUES (%s, %s, %s)",
            [i, picture(i % 2, 20 + i, kind, mode), "bright" if i % 2 else "dark"],
        )
    shop.run("INSERT INTO photos VALUES (60, NULL, 'dark')")
    call = """SELECT mop_pack('photos', %s, target => 'y', id => 'id', transform => '{"photo": {"size": 16, "channels": 1}}')"""
    shop.run(call, ["photos_packed"])
    packed = [
        (
            np.frombuffer(bytes(r["photo"]), "<f4").reshape(r["photo_shape"]),
            np.frombuffer(bytes(r["y"]), "<i2").reshape(-1, 2),
        )
        for r in shop.run("SELECT photo, photo_shape, y FROM photos_packed ORDER BY buffer_id")
    ]
    photos, labels = (np.concatenate(own) for own in zip(*packed))
    assert photos.shape == (61, 16, 16, 1) and photos.min() >= 0 and photos.max() <= 1
    corner = photos[:, 1, 1, 0]
    known = photos.reshape(61, -1).max(1) > 0
    assert np.allclose(corner[known & (labels[:, 0] == 1)], 40 / 255, atol=0.02)  # classes in order: bright, dark
    assert np.allclose(corner[known & (labels[:, 1] == 1)], 200 / 255, atol=0.02)
    shop.run("SELECT mop_architecture('photos_nets', 'photos_packed', 'small')")
    shop.run(
        "SELECT madlib_keras_fit('photos_packed', 'photos_fitted', 'photos_nets', 1, $$loss='categorical_crossentropy', "
        "optimizer='Adam(lr=0.02)'$$, 'batch_size=16', 12)"
    )
    shop.run("SELECT mop_deploy('photos_model', 'photos_fitted')")
    table = {
        r["kept"]["id"]: r
        for r in shop.run("SELECT * FROM mop_predict('photos_model', source => 'photos', keep => 'id')")
    }
    assert sum(table[i]["prediction"] == ("bright" if i % 2 else "dark") for i in range(60)) > 50
    for row in shop.run("SELECT t.id, p.* FROM photos t, mop_predict('photos_model', t) AS p WHERE id % 10 = 0"):
        assert row["probability"] == pytest.approx(table[row["id"]]["probability"], abs=1e-5)
    shop.run("SELECT mop_pack('SELECT * FROM photos WHERE id < 9', 'photos_checked', fitted_on => 'photos_packed')")
    broken = picture(1, 50)[:60]
    shop.run("UPDATE photos SET photo = %s WHERE id = 30", [broken])
    for ask in ("SELECT * FROM mop_predict('photos_model', source => 'photos')", call.replace("%s", "'photos_broken'")):
        error = str(shop.error(ask))
        assert 'column "photo" has a value that is no PNG or JPEG image' in error
        assert shop.value("SELECT id FROM photos WHERE md5(photo) = %s", [error.split("= '")[1][:32]]) == 30
    error = shop.error(call.replace("%s", "'no'").replace('"channels": 1', '"channels": 2'))
    assert "channels must be 1 (grey) or 3" in str(error)


def test_other_binary_data_are_no_features(shop):
    del shop.connection.notices[:]
    shop.run(
        "SELECT mop_pack('SELECT price, label, decode(md5(note), ''hex'') AS b FROM orders', 'with_bytes', 'label')"
    )
    assert "b: type bytea has no features" in "".join(shop.connection.notices)


@pytest.mark.parametrize("source", ["with_gaps", "SELECT * FROM with_gaps"])
def test_rows_without_a_target_are_left_out_with_a_notice(shop, source):
    shop.run(
        "CREATE TABLE IF NOT EXISTS with_gaps AS SELECT i AS n, (ARRAY['a', 'b', NULL])[1 + i % 3] AS y "
        "FROM generate_series(1, 90) i; DROP TABLE IF EXISTS gaps_packed, gaps_packed_summary"
    )
    del shop.connection.notices[:]
    shop.run("SELECT mop_pack(%s, 'gaps_packed', target => 'y')", [source])
    assert "rows without a value of target" in "".join(shop.connection.notices)
    assert shop.value("SELECT sum(y_shape[1]) FROM gaps_packed") == 60


def test_soft_labels_and_vectors_of_numbers_are_packed_trained_on_and_predicted(shop):
    shop.run(
        "CREATE TABLE doubts AS SELECT id, price, CASE WHEN label = 'high' THEN ARRAY[0.1, 0.2, 0.7] "
        "ELSE ARRAY[0.6, 0.3, 0.1] END::float8[] AS p, ARRAY[price / 100, 1 - price / 50]::real[] AS two FROM orders"
    )
    del shop.connection.notices[:]
    shop.run("SELECT mop_pack('doubts', 'doubts_packed', target => 'p', id => 'id', exclude => 'two')")
    assert any("vectors of 3" in n and "classification" in n for n in shop.connection.notices)
    first = shop.run("SELECT p, p_shape FROM doubts_packed")[0]
    packed = np.frombuffer(bytes(first["p"]), "<f4").reshape(first["p_shape"])
    assert {tuple(row) for row in packed.astype("f8").round(3).tolist()} <= {(0.1, 0.2, 0.7), (0.6, 0.3, 0.1)}
    shop.run("SELECT mop_architecture('doubt_nets', 'doubts_packed', 'small')")
    last = shop.value("SELECT model_arch->'config'->'layers'->-1->'config' FROM doubt_nets")
    assert last["units"] == 3 and last["activation"] == "softmax"
    shop.run(
        "SELECT madlib_keras_fit('doubts_packed', 'doubts_fitted', 'doubt_nets', 1, "
        "$$loss='categorical_crossentropy', optimizer='Adam(lr=0.03)'$$, 'batch_size=32', 12)"
    )
    shop.run("SELECT mop_deploy('doubt_model', 'doubts_fitted')")
    found = shop.run(
        "SELECT d.p, a.prediction, a.probabilities FROM doubts d, mop_predict('doubt_model', d) AS a WHERE price < 20 LIMIT 5"
    )
    assert all(r["prediction"] == "0" and abs(r["probabilities"]["0"] - 0.6) < 0.15 for r in found)
    with pytest.raises(Exception, match="arrays, and a report needs one class"):
        shop.run("SELECT * FROM mop_evaluate('doubt_model', 'doubts')")
    shop.run("SELECT mop_pack('doubts', 'two_packed', target => 'two', id => 'id', exclude => 'p')")
    assert any("vectors of 2" in n and "regression" in n for n in shop.connection.notices)
    shop.run("SELECT mop_architecture('two_nets', 'two_packed', 'linear')")
    last = shop.value("SELECT model_arch->'config'->'layers'->-1->'config' FROM two_nets")
    assert last["units"] == 2 and "activation" not in last


@pytest.mark.parametrize(
    "values, count",
    [("ARRAY[0.5, 0.6]", 1), ("ARRAY[1.5, -0.5]", 1), ("ARRAY[0.5, NULL]", 1), ("ARRAY['NaN', 1]", 1), ("'{}'", 1)],
)
def test_arrays_that_are_no_probabilities_are_refused_as_classes(shop, values, count):
    shop.run(
        "DROP TABLE IF EXISTS odd_doubts; CREATE TABLE odd_doubts AS SELECT i AS n, ARRAY[0.25, 0.75]::float8[] AS p "
        f"FROM generate_series(1, 30) i; UPDATE odd_doubts SET p = ({values})::float8[] WHERE n = 7"
    )
    with pytest.raises(Exception, match=f"has no probabilities in {count} row") as error:
        shop.run("SELECT mop_pack('odd_doubts', 'odd_packed', target => 'p', kind => 'classification')")
    hint = str(error.value).partition("HINT:")[2]
    if values == "ARRAY[0.5, 0.6]":
        assert shop.run(hint.partition(";")[0])[0]["n"] == 7
    with pytest.raises(Exception, match="has arrays: mop_train takes a column"):
        shop.run("SELECT mop_train('odd_doubts', 'odd_model', target => 'p')")


def test_a_net_in_pieces_trains_on_a_packed_table(shop):
    shop.run("SELECT mop_architecture('piece_nets', 'packed', 'pieces, gated')")
    layers = shop.value("SELECT model_arch->'config'->'layers' FROM piece_nets WHERE name = 'pieces'")
    scaled = next(layer["config"] for layer in layers if layer["class_name"] == "Normalization")
    numbers = [f for f in shop.run("SELECT * FROM mop_feature_info('packed')") if f["feature"].startswith("number")]
    assert len(scaled["mean"]) % sum(f["elements"] for f in numbers) == 0 and len(scaled["mean"]) > 20
    shop.run(
        "SELECT madlib_keras_fit('packed', 'in_pieces', 'piece_nets', 1, $$loss='categorical_crossentropy', "
        "optimizer='Adam(lr=0.01)', metrics=['accuracy']$$, 'batch_size=32, epochs=1', 8)"
    )
    assert shop.value("SELECT training_metrics_final FROM in_pieces_summary") > 0.8


@pytest.mark.parametrize("column", ["town", "half", "day"])
def test_rows_of_a_group_are_packed_into_one_segment(shop, column):
    """Each row's price tells its group: the packed rows must have each group in one segment, and lose none."""
    shop.run(
        "CREATE TABLE IF NOT EXISTS visits AS SELECT i AS n, (i % 20)::text AS town, CASE WHEN i % 20 > 1 THEN "
        "(i % 20) / 2.0 END AS half, timestamp '2024-01-01' + i % 20 * interval '1 hour' AS day, (i % 20)::float8 AS g, "
        "i % 3 = 0 AS y FROM generate_series(1, 500) i"
    )
    shop.run("SET pg_mop.segments = 4")
    shop.run(
        "DROP TABLE IF EXISTS visits_packed, visits_packed_summary; "
        "SELECT mop_pack('visits', 'visits_packed', target => 'y', exclude => 'n, town, half, day', "
        f"transform => '{{\"g\": \"none\"}}', grouped_by => '{column}', buffer_size => 30)"
    )
    found = {}
    rows = 0
    for row in shop.run("SELECT __dist_key__ AS segment, features, features_shape FROM visits_packed"):
        values = np.frombuffer(bytes(row["features"]), "<f4").reshape(row["features_shape"])[:, 0]
        rows += len(values)
        for value in values.tolist():
            group = max(value, 1) if column == "half" else value  # (0 and 1 are NULL there: one group)
            found.setdefault(group, set()).add(row["segment"])
    shop.run("RESET pg_mop.segments")
    assert rows == 500 and len(found) == (19 if column == "half" else 20)
    assert all(len(segments) == 1 for segments in found.values())
    assert len(set.union(*found.values())) == 4


def test_groups_that_are_too_few_are_refused_with_a_hint_that_helps(shop):
    shop.run("SET pg_mop.segments = 4")
    with pytest.raises(Exception, match='column "gift" has 2 groups, fewer than the 4 segments') as error:
        shop.run("SELECT mop_pack('orders', 'gifts', target => 'label', id => 'id', grouped_by => 'gift')")
    shop.run(str(error.value).partition("HINT:")[2].partition("\n")[0])
    shop.run("SELECT mop_pack('orders', 'gifts', target => 'label', id => 'id', grouped_by => 'gift')")
    assert shop.value("SELECT count(DISTINCT __dist_key__) FROM gifts") == 2
    with pytest.raises(Exception, match='column "no" does not exist'):
        shop.run("SELECT mop_pack('orders', 'gifts_2', target => 'label', grouped_by => 'no')")
    shop.run("RESET pg_mop.segments")


def test_the_default_nets_have_pieces_where_rows_are_enough(shop):
    found = []
    for rows in (999, 1000):
        shop.run(
            f"SELECT mop_pack('SELECT i, i * 37 % 101 AS a, i % 3 = 0 AS y FROM generate_series(1, {rows}) i', 'of_{rows}', "
            "target => 'y', exclude => 'i')"
        )
        shop.run(f"SELECT mop_architecture('nets_{rows}', 'of_{rows}')")
        found.append([r["name"] for r in shop.run(f"SELECT name FROM nets_{rows} ORDER BY model_id")])
    assert found == [["linear", "small", "medium", "residual"], ["linear", "small", "medium", "residual", "pieces"]]


def test_validation_rows_of_a_class_without_training_rows_are_left_out_and_told(shop):
    shop.run(
        "CREATE TABLE rare AS SELECT id, price, CASE WHEN id IN (5, 17) THEN 'fraud' ELSE label END AS y FROM orders; "
        "SELECT mop_pack('SELECT * FROM rare WHERE id > 100', 'rare_packed', target => 'y', id => 'id')"
    )
    del shop.connection.notices[:]
    shop.run("SELECT mop_pack('SELECT * FROM rare WHERE id <= 100', 'rare_checked', fitted_on => 'rare_packed')")
    told = "".join(shop.connection.notices)
    assert '2 rows are left out: training rows have no such class of "y"' in told and "They have fraud." in told
    assert shop.value("SELECT sum(y_shape[1]) FROM rare_checked") == 98
    error = shop.error("SELECT mop_pack('SELECT * FROM rare WHERE id IN (5, 17)', 'no', fitted_on => 'rare_packed')")
    assert "has no class fraud" in str(error)


def test_a_label_of_an_enum_that_is_renamed_is_told_and_drifts(shop):
    shop.run("SELECT mop_pack('orders', 'by_size', target => 'size', id => 'id', exclude => 'note, vec, payload')")
    shop.run("SELECT mop_architecture('size_nets', 'by_size', 'linear')")
    shop.run(
        "SELECT madlib_keras_fit('by_size', 'size_fitted', 'size_nets', 1, $$loss='categorical_crossentropy', "
        "optimizer='Adam(lr=0.01)', metrics=['accuracy']$$, 'batch_size=32, epochs=1', 1)"
    )
    shop.run("SELECT mop_deploy('size_model', 'size_fitted')")
    drift = "SELECT column_name, verdict FROM mop_drift('{}', 'orders')"
    before = {r["column_name"]: r["verdict"] for r in shop.run(drift.format("size_model"))}
    assert before["size"] == "stable" and set(before.values()) == {"stable"}
    other = shop.another()
    other.run("ALTER TYPE size RENAME VALUE 'm' TO 'middle'; SET search_path = public, madlib")
    try:
        for model in ("order_model", "size_model", "by_size"):  # (as a column, and as the target)
            assert {r["column_name"]: r["verdict"] for r in other.run(drift.format(model))}["size"] == "drifted"
        del other.connection.notices[:]
        other.run("SELECT p.* FROM orders t, mop_predict('order_model', t) AS p WHERE t.id < 9")
        told = "".join(other.connection.notices)
        assert told.count('column "size" has values that training rows did not have') == 1 and "middle" in told
        del other.connection.notices[:]
        other.run("SELECT * FROM mop_predict('order_model', source => 'orders')")
        assert "Its type has no label m any more" in "".join(other.connection.notices)
        error = other.error("SELECT mop_pack('orders', 'no', fitted_on => 'size_model')")
        assert "has no label m, which is a class of the model" in str(error) and "RENAME" in error.diag.message_hint
    finally:
        other.run("ALTER TYPE size RENAME VALUE 'middle' TO 'm'")
        other.close()


def test_numbers_beyond_the_range_are_cut_in_training_as_in_answers(shop):
    for wild in ("'Infinity'::float8", "1e31::float8", "'-Infinity'::numeric"):
        del shop.connection.notices[:]
        source = f"SELECT id, CASE WHEN id = 9 THEN {wild} ELSE price END AS f, label FROM orders"
        shop.run("SELECT mop_pack(%s, 'wild', target => 'label', id => 'id', buffer_size => 1000)", [source])
        assert 'column "f" has 1 number that is infinite or beyond 1e+30' in "".join(shop.connection.notices)
        packed = np.concatenate(
            [np.frombuffer(bytes(r["features"]), "<f4") for r in shop.run("SELECT features FROM wild")]
        )
        assert (
            np.isfinite(packed).all() and (np.abs(packed) == 30).sum() == 1 and 0.9 < np.sort(packed)[1:-1].std() < 1.1
        )
        shop.run("DROP TABLE wild, wild_summary")


def test_an_outlier_that_hides_other_numbers_is_told_with_the_scale_that_shows_them(shop):
    source = "SELECT id, CASE WHEN id = 9 THEN 1e12 ELSE price END AS f, discount, label FROM orders"
    call = "SELECT mop_pack(%s, 'hidden', target => 'label', id => 'id', transform => %s)"
    for transform, told in (
        ("{}", True),
        ('{"f": "minmax"}', True),
        ('{"f": "robust"}', False),
        ('{"f": "log"}', False),
    ):
        del shop.connection.notices[:]
        shop.run(call, [source, transform])
        messages = "".join(shop.connection.notices)
        assert ('column "f" has 1e+12, so far from other numbers' in messages) == told == ('"robust"' in messages)
        assert 'column "discount" has' not in messages
        shop.run("DROP TABLE hidden, hidden_summary")


def test_a_vector_of_pgvector_is_left_out_with_its_cast_as_hint(shop):
    shop.run("CREATE SCHEMA named; CREATE TYPE named.vector AS (x real)")  # (pgvector is not on every machine)
    del shop.connection.notices[:]
    shop.run(
        "SELECT mop_pack('SELECT price, ROW(1)::named.vector AS e, label FROM orders', 'vectors', target => 'label')"
    )
    told = "".join(shop.connection.notices)
    assert "e: type named.vector has no features" in told and 'SELECT *, "e"::real[] AS "e_array"' in told
