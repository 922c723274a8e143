"""mop_explain_answer: contributions of columns to the answer for a row, as a user asks for them."""

import io
import json
import math

import numpy as np
import pytest

EXPLAIN = "SELECT e.* FROM (SELECT * FROM {} WHERE id = 5) t, mop_explain_answer('{}', t{}) e"


@pytest.fixture(scope="module")
def shop(db):
    """Named models of classes and of numbers, and one that was deployed and so knows no training rows."""
    db.run("SET search_path = public, madlib; SET pg_mop.seed = 7")
    db.run(
        "CREATE TABLE orders AS SELECT i AS id, (i * 37 % 101)::float8 AS price, "
        "CASE WHEN i % 9 > 0 THEN (i * 13 % 50)::numeric(6, 1) END AS discount, 'town ' || i % 4 AS town, "
        "jsonb_build_object('a', i % 7, 'b', i % 3) AS payload, date '2024-01-01' + i % 200 AS placed, 1 AS same, "
        "CASE WHEN i * 37 % 101 + 30 * (i % 2) > 60 THEN 'high' ELSE 'low' END AS label "
        "FROM generate_series(1, 400) i; ALTER TABLE orders ADD PRIMARY KEY (id)"
    )
    for name, target, family in (("labels", "label", "boosting"), ("prices", "price", "mlp")):
        db.run(
            f"SELECT mop_train('orders', '{name}', '{target}', id => 'id', max_trials => 1, baselines => FALSE, families => "
            f"""'{family}', transform => '{{"payload->a": "number", "payload->b": "number"}}')"""
        )
    db.run("CREATE TABLE plain AS TABLE labels; UPDATE plain SET details = NULL")
    return db


def explained(client, model="labels", arguments="", table="orders"):
    rows = client.run(EXPLAIN.format(table, model, arguments))
    assert rows[0]["column_name"] == "(base)"
    sizes = [abs(r["contribution"]) for r in rows[1:]]
    assert sizes == sorted(sizes, reverse=True) and all(r["deviation"] >= 0 for r in rows[1:])
    return {r["column_name"]: r for r in rows}


def total(found):
    return math.fsum(r["contribution"] for r in found.values())


def log_odds(client, model, table="orders"):
    answer = client.run(f"SELECT p.* FROM {table} t, mop_predict('{model}', t) p WHERE id = 5")[0]
    shares = answer["probabilities"]
    return answer["prediction"], math.log(shares.pop(answer["prediction"]) / sum(shares.values()))


def test_base_and_contributions_sum_up_to_the_log_odds_of_the_class(shop):
    label, wanted = log_odds(shop, "labels")
    found = explained(shop)
    assert set(found) == {"(base)", "price", "discount", "town", "payload", "placed"} | ({"same"} & set(found))
    assert found["(base)"]["value"] == label and total(found) == pytest.approx(wanted, abs=1e-9)
    row = shop.run("SELECT price::text, discount::text, town, payload::text, placed::text FROM orders WHERE id = 5")[0]
    assert {name: found[name]["value"] for name in row if name != "payload"} == {
        k: v for k, v in row.items() if k != "payload"
    }
    assert json.loads(found["payload"]["value"]) == json.loads(row["payload"])
    other = ({"high", "low"} - {label}).pop()
    opposite = explained(shop, arguments=f", label => '{other}'")
    for name, r in found.items():
        assert opposite[name]["contribution"] == pytest.approx(-r["contribution"], abs=1e-5)
    assert abs(found["price"]["contribution"]) == max(abs(r["contribution"]) for n, r in found.items() if n != "(base)")


def test_base_and_contributions_sum_up_to_the_number(shop):
    found = explained(shop, "prices")
    assert found["(base)"]["value"] is None
    assert total(found) == pytest.approx(
        shop.value("SELECT mop_number('prices', t) FROM orders t WHERE id = 5"), abs=1e-6
    )


def test_the_seed_decides_the_numbers_and_a_plan_does_not(shop):
    first = explained(shop)
    shop.run(
        "CREATE TABLE moved AS SELECT same, placed, payload, town, discount, price, id, label FROM orders ORDER BY id DESC"
    )
    assert explained(shop) == first != explained(shop, arguments=", seed => 1")
    source = explained(shop, arguments=", source => 'orders'")
    assert explained(shop, arguments=", source => 'SELECT * FROM moved'") == source != first


def test_columns_of_equal_values_contribute_nothing_and_null_is_a_value(shop):
    shop.run(
        "CREATE TABLE alike AS SELECT id, price, discount, 'town 1'::text AS town, payload, placed FROM orders; "
        "UPDATE alike SET discount = NULL, price = 5"
    )
    found = explained(shop, arguments=", source => 'SELECT * FROM alike WHERE id % 7 <> 5'", table="alike")
    for name in ("town", "discount", "price"):
        assert (found[name]["contribution"], found[name]["deviation"]) == (0, 0)
    assert found["discount"]["value"] is None and found["payload"]["contribution"] != 0
    found = explained(shop, arguments=", source => 'orders'", table="alike")
    assert found["discount"]["contribution"] != 0


def test_the_background_is_a_sample_of_rows_however_often_each_is_there(shop):
    shop.run(
        "CREATE TABLE often AS SELECT i AS id, CASE WHEN i % 10 = 0 THEN 90 ELSE 10 END AS price, 'town 1'::text AS town "
        "FROM generate_series(1, 3000) i"
    )
    base = explained(shop, "prices", ", source => 'often'", "often")["(base)"]["contribution"]
    mean = shop.value("SELECT avg(prediction::float8) FROM mop_predict('prices', source => 'often')")
    assert base == pytest.approx(mean, rel=0.02)


def test_a_null_row_has_no_rows_and_an_absent_column_is_null(shop):
    assert shop.value("SELECT count(*) FROM mop_explain_answer('labels', NULL::orders)") == 0
    del shop.connection.notices[:]
    rows = shop.run(
        "SELECT e.* FROM (SELECT price, town FROM orders WHERE id = 5) t, mop_explain_answer('labels', t) e"
    )
    assert any("columns of training rows are missing: discount" in notice for notice in shop.connection.notices)
    assert {r["column_name"]: r["value"] for r in rows}["discount"] is None


@pytest.mark.parametrize(
    "call, fragment, hint",
    [
        ("mop_explain_answer('labels', t, label => 'middle')", "has no class 'middle'", ""),
        ("mop_explain_answer('prices', t, label => 'high')", "predicts numbers", "Leave out label"),
        ("mop_explain_answer('labels', t, version => 7)", "has no version 7", "SELECT version"),
        ("mop_explain_answer('labels', t, version => 1.5)", "version must be an integer", ""),
        ("mop_explain_answer('nothing', t)", "does not exist", ""),
        ("mop_explain_answer('labels', t.town)", "a row must have columns with names", "mop_explain_answer("),
        ("mop_explain_answer('plain', t)", "does not say which rows it was trained on", "source =>"),
        ("mop_explain_answer('labels', t, source => 'nothing')", "does not exist", ""),
        ("mop_explain_answer('labels', t, source => 'SELECT * FROM orders WHERE false')", "no background rows", "source =>"),
        ("mop_explain_answer('labels', t, source => 'SELECT 1 AS town')", 'column "town" has type integer', "Cast it"),
    ],
)  # fmt: skip
def test_bad_input_names_what_is_wrong(shop, call, fragment, hint):
    error = str(shop.error(f"SELECT e.* FROM orders t, {call} e WHERE t.id = 5"))
    assert fragment in error and hint in error


def test_a_value_of_another_type_is_named(shop):
    error = shop.error("SELECT e.* FROM (SELECT 'x'::text AS price) t, mop_explain_answer('labels', t) e")
    assert 'column "price" has "x"' in str(error)


def test_a_linear_net_has_its_closed_form(shop):
    shop.run(
        "CREATE TABLE straight AS SELECT i AS id, (i % 13)::float8 AS a, (i * 7 % 31)::float8 AS b, (i % 13)::float8 AS y "
        "FROM generate_series(1, 200) i; SELECT mop_pack('straight', 'straight_packed', target => 'y', id => 'id', "
        """kind => 'regression'); SELECT load_keras_model('lines', $${"class_name": "Sequential", "config": {"name": "s", """
        """"layers": [{"class_name": "InputLayer", "config": {"batch_shape": [null, 2], "name": "i"}}, """
        """{"class_name": "Dense", "config": {"units": 1, "name": "d"}}]}}$$)"""
    )
    shop.run(
        "SELECT madlib_keras_fit('straight_packed', 'straight_fitted', 'lines', 1, $$loss='mse', optimizer='Adam()'$$, "
        "'batch_size=32', 3); SELECT mop_deploy('straight_model', 'straight_fitted')"
    )
    found = explained(shop, "straight_model", ", source => 'straight'", "straight")
    # the slope of each column, by two answers
    for name, other in (("a", "b"), ("b", "a")):
        slope = shop.value(
            "SELECT mop_number('straight_model', u) - mop_number('straight_model', t) FROM straight t, "
            f"(SELECT {name} + 1 AS {name}, {other} FROM straight WHERE id = 5) u WHERE t.id = 5"
        )
        apart = shop.value(f"SELECT (SELECT {name} FROM straight WHERE id = 5) - avg({name}) FROM straight")
        assert found[name]["contribution"] == pytest.approx(slope * apart, abs=1e-3)


def test_texts_and_images_are_columns_as_others(shop):
    from PIL import Image

    def picture(shade):
        file = io.BytesIO()
        Image.fromarray(np.full((8, 8), shade, "u1")).save(file, "PNG")
        return file.getvalue()

    shop.run("CREATE TABLE shown (id int, picture bytea, note text, spare real[], y text)")
    for i in range(120):
        shop.run(
            "INSERT INTO shown VALUES (%s, %s, %s, %s, %s)",
            [i, picture(i * 2), f"a note about the {('fish', 'bread')[i % 2]} of number {i}", [i, 1.5], "ab"[i % 2]],
        )
    shop.run(
        "SELECT mop_train('shown', 'shown_model', 'y', id => 'id', max_trials => 1, baselines => FALSE, layers => 'small', "
        "families => 'nets', refit => FALSE, time_limit => '3 s')"
    )
    found = explained(shop, "shown_model", table="shown")
    assert {"picture", "note", "spare"} <= set(found) and found["picture"]["value"].endswith("...")
    assert total(found) == pytest.approx(log_odds(shop, "shown_model", "shown")[1], abs=1e-5)


def test_a_role_without_rights_on_the_training_rows_names_its_own(shop):
    shop.run(
        "CREATE ROLE clerk_of_answers LOGIN; GRANT mop_user TO clerk_of_answers; "
        "GRANT USAGE ON SCHEMA public TO clerk_of_answers; SELECT mop_share('labels', 'clerk_of_answers')"
    )
    clerk = shop.another("clerk_of_answers")
    clerk.run(
        "SET search_path = public, madlib; CREATE TEMP TABLE mine AS SELECT 5 AS id, 3.5 AS price, 'town 1'::text AS town, "
        "NULL::numeric AS discount, '{}'::jsonb AS payload, current_date AS placed"
    )
    error = str(clerk.error(EXPLAIN.format("mine", "labels", "")))
    assert (
        "trained on cannot be read" in error and "permission denied for table orders" in error and "source =>" in error
    )
    assert explained(clerk, arguments=", source => 'SELECT price + id AS price FROM mine'", table="mine")["price"]
    clerk.close()


def test_a_query_that_another_role_has_written_is_not_read(shop):
    """A model's row may have been changed by whoever may: its query would run with the reader's rights."""
    shop.run(
        "CREATE ROLE forger_of_answers LOGIN; GRANT mop_user TO forger_of_answers; "
        "GRANT ALL ON SCHEMA public TO forger_of_answers"
    )
    forger = shop.another("forger_of_answers")
    shop.run("GRANT SELECT ON labels TO forger_of_answers")
    forger.run("SET search_path = public, madlib; CREATE TABLE copied AS TABLE labels")
    forger.run(
        "UPDATE copied SET details = jsonb_set(details::jsonb, '{parts,train}', to_jsonb('SELECT 1/0'::text)); "
        "GRANT SELECT ON copied TO public"
    )
    error = str(shop.error(EXPLAIN.format("orders", "copied", "")))
    assert "it is not certain who gave" in error and "division" not in error
    forger.close()
