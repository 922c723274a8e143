"""class_weight in fit parameters: by number, by label, 'balanced'."""

import pytest

from support.workload import ADAM, dense, fit, load, make_data, nothing_is_left, selection, state


@pytest.fixture(scope="module")
def labels(db):
    """Tables of three classes of 60, 30 and 10 rows, packed by text, number and boolean."""
    make_data(db, segments=1)
    db.run(
        "CREATE TABLE uneven AS SELECT id, x, CASE WHEN id <= 60 THEN 'a' WHEN id <= 90 THEN 'b' ELSE 'c' END AS t, "
        "CASE WHEN id <= 60 THEN 5 WHEN id <= 90 THEN 6 ELSE 2 END AS n, id <= 60 AS yes FROM flowers"
    )
    for column, width in (("t", 3), ("n", 3), ("yes", 2)):
        load(db, f"net_{column}", dense().replace('"units": 3', f'"units": {width}'))
        db.run(f"SELECT madlib.training_preprocessor_dl('uneven', 'uneven_{column}', '{column}', 'x', 9)")


@pytest.mark.parametrize(
    "column,weights,text",
    [
        ("t", "{7: 100.0}", 'class_weight names class 7, but "uneven_t" has the classes 0 to 2'),
        ("t", "{0: 5.0, 9: 3.0}", "class_weight names class 9"),
        ("n", "{5: 2}", "has the classes 0 to 2; for the label 5, write {'5': ...}"),
        ("n", "{2: 3}", "class_weight names 2, which is the number of the class '6', and the label of another"),
        ("t", "{'d': 2}", "class_weight names the label 'd', which is none of \"uneven_t\": a, b, c"),
        ("t", "{0: -1.0}", "class_weight must not be below 0, as that of class 0 is"),
        ("t", "{'a': 1, 0: 2}", "class_weight gives class 0 two weights"),
        ("t", "{0: 0, 1: 0, 2: 0}", "class_weight gives all classes the weight 0"),
        ("t", "'even'", "or 'balanced', not"),
        ("t", "{None: 1}", "dictionary of class numbers or labels"),
        ("t", "[{0: 1}, {7: 3}]", "iteration 2: class_weight names class 7"),
    ],
)
def test_class_weights_of_classes_that_are_not_there_are_refused(db, labels, column, weights, text):
    selection(db, "mst_w", f"net_{column}", [(1, ADAM.format(0.05), "")])
    db.run("UPDATE mst_w SET fit_params = %s", [f"batch_size=8, class_weight={weights}"])
    before = state(db)
    error = db.error(f"SELECT madlib.madlib_keras_fit_multiple_model('uneven_{column}', 'never', 'mst_w', 2, FALSE)")
    assert text in str(error)
    nothing_is_left(db, before)


def weighted(db, column, *weights):
    """The final weights of configurations with class weights, in their order."""
    db.run("SET pg_mop.kernel = plain")
    selection(
        db, "mst_w", f"net_{column}", [(1, ADAM.format(0.05), f"batch_size=8, class_weight={w}") for w in weights]
    )
    fit(db, f"uneven_{column}", "models_w", "mst_w", 1)
    return [bytes(r["model_weights"]) for r in db.run("SELECT model_weights FROM models_w ORDER BY mst_key")]


@pytest.mark.parametrize(
    "column,same",
    [
        ("t", ["{0: 2.0, 2: 0.5}", "{'a': 2, 'c': 0.5}", "{'a': 2.0, 'b': 1, 2: 0.5}"]),
        ("n", ["{2: 3, 0: 1}", "{'6': 3.0}", "{'2': 1, '5': 1, '6': 3}"]),  # in the order of the labels: 2, 5, 6
        ("yes", ["{1: 4}", "{True: 4}", "{'true': 4, False: 1}"]),
        ("t", ["'balanced'", f"{{'a': {100 / 180}, 'b': {100 / 90}, 'c': {100 / 30}}}"]),
        ("yes", ["'balanced'", f"{{0: {100 / 80}, 1: {100 / 120}}}"]),
        ("t", ["[{'a': 3}, {0: 3}]", "[{0: 3}]"]),
    ],
)
def test_class_weights_name_classes_by_number_or_label(db, labels, column, same):
    found = weighted(db, column, *same, "{0: 1}")
    assert len(set(found[:-1])) == 1 and found[-1] != found[0]


def test_a_single_number_has_the_classes_0_and_1(db, labels):
    """As Dense(1, 'sigmoid') has them, of labels that are packed as numbers."""
    db.run("CREATE VIEW of_two AS SELECT id, x, yes::integer AS y FROM uneven")
    db.run("SELECT madlib.training_preprocessor_dl('of_two', 'uneven_y', 'y', 'x', 9, dependent_dtype => 'float32')")
    load(db, "net_y", dense().replace('"units": 3', '"units": 1').replace("softmax", "sigmoid"))
    compiled = "loss='binary_crossentropy', optimizer='Adam(lr=0.05)'"

    def table(*weights):
        selection(db, "mst_y", "net_y", [(1, compiled, f"batch_size=8, class_weight={w}") for w in weights])

    same = [f"{{0: {100 / 80}, 1: {100 / 120}}}", "'balanced'", f"{{'0': {100 / 80}, '1': {100 / 120}}}"]
    table(*same, "{1: 3}")
    fit(db, "uneven_y", "models_y", "mst_y", 1)
    found = [bytes(r["model_weights"]) for r in db.run("SELECT model_weights FROM models_y ORDER BY mst_key")]
    assert len(set(found[:3])) == 1 and found[3] != found[0]
    for weights, text in (("{5: 3}", "has the classes 0 to 1"), ("{0: 0, 1: 0}", "all classes the weight 0")):
        table(weights)
        assert text in str(
            db.error("SELECT madlib.madlib_keras_fit_multiple_model('uneven_y', 'never', 'mst_y', 1, FALSE)")
        )


@pytest.mark.parametrize(
    "kind,label", [("real", "0.1"), ("numeric(5,2)", "1.50"), ("char(5)", "ab"), ("date", "2026-01-02")]
)
def test_labels_are_written_as_postgresql_writes_them(db, labels, kind, label):
    db.run(
        f"DROP TABLE IF EXISTS kinds, kinds_packed, kinds_packed_summary; CREATE TABLE kinds AS SELECT id, x, "
        f"CASE WHEN id % 2 = 0 THEN '{label}'::{kind} END AS y FROM flowers WHERE id % 2 = 0 OR id > 90"
    )
    db.run("SELECT madlib.training_preprocessor_dl('kinds', 'kinds_packed', 'y', 'x')")
    load(db, "net_k", dense().replace('"units": 3', '"units": 2'))
    selection(
        db,
        "mst_k",
        "net_k",
        [
            (1, ADAM.format(0.05), f"batch_size=8, class_weight={{'{label}': 3}}"),
            (1, ADAM.format(0.05), "batch_size=8, class_weight={1: 3}"),
        ],
    )
    fit(db, "kinds_packed", "models_k", "mst_k", 1)
    first, second = db.run("SELECT model_weights FROM models_k ORDER BY mst_key")
    assert bytes(first["model_weights"]) == bytes(second["model_weights"])
