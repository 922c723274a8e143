"""Models out of the database as .keras files, into it from them; and what no such file may do."""

import io
import json
import pathlib
import subprocess
import sys
import zipfile

import h5py
import numpy as np
import pytest

from support.workload import ADAM, dense, fit, load, make_data, selection


@pytest.fixture(scope="module")
def models(db):
    make_data(db)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=8")])
    fit(db, "flowers_packed", "models", "mst", 2)
    db.run("SELECT madlib.madlib_keras_predict('models', 'flowers', 'id', 'x', 'guesses', 'prob', FALSE, 1)")
    return bytes(db.value("SELECT madlib.mop_export_model('models', 1)"))


def test_an_exported_model_predicts_the_same_numbers_in_plain_keras(db, models, tmp_path):
    (tmp_path / "model.keras").write_bytes(models)
    x = np.array([r["x"] for r in db.run("SELECT x FROM flowers ORDER BY id")], "f4")
    np.save(tmp_path / "x.npy", x)
    program = (
        "import keras, numpy, sys; p = sys.argv[1]; m = keras.models.load_model(p + '/model.keras'); "
        "numpy.save(p + '/y.npy', m.predict(numpy.load(p + '/x.npy'), verbose=0))"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True)
    theirs = np.load(tmp_path / "y.npy")
    ours = np.array(
        [
            r["p"]
            for r in db.run("SELECT array_agg(prob ORDER BY class_value) AS p FROM guesses GROUP BY id ORDER BY id")
        ]
    )
    assert np.abs(ours - theirs).max() <= 1e-6


def test_a_file_comes_back_as_architecture_and_weights(db, models):
    db.run("DROP TABLE IF EXISTS own, mine")
    assert db.value("SELECT madlib.mop_import_model('own', %s, 'back', 'a file')", [models]) == 1
    row = db.run("SELECT * FROM own")[0]
    assert bytes(row["model_weights"]) == bytes(db.value("SELECT model_weights FROM models"))
    assert (row["name"], row["description"], row["model_arch"]["class_name"]) == ("back", "a file", "Sequential")
    db.run(
        "SELECT madlib.madlib_keras_predict_byom('own', 1, 'flowers', 'id', 'x', 'mine', 'prob', FALSE, "
        "ARRAY['a', 'b', 'c'])"
    )
    assert db.value("SELECT count(*) FROM mine JOIN guesses USING (id, class_value, prob)") == 300


def changed(data, **replaced):
    """A .keras file with other contents; None leaves a part out."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            content = replaced.get(name.split(".")[0], old.read(name))
            if content is not None:
                new.writestr(name, content)
    return made.getvalue()


def weights_with(data, tmp_path, change):
    """The weights file of a .keras file after `change(h5py file)`."""
    path = pathlib.Path(tmp_path) / "w.h5"
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        path.write_bytes(file.read("model.weights.h5"))
    with h5py.File(path, "r+") as file:
        change(file)
    return path.read_bytes()


def first_variable(file):
    """(group, name) of the first array in the file."""
    found = []
    file.visititems(lambda name, item: found.append(item) if isinstance(item, h5py.Dataset) else None)
    return found[0].parent, found[0].name.rsplit("/", 1)[1]


def external_link(file):
    first_variable(file)[0]["9"] = h5py.ExternalLink("/etc/passwd", "/")


def external_storage(file):
    group, name = first_variable(file)
    shape = group[name].shape
    del group[name]
    group.create_dataset(name, shape, "f4", external=[("/etc/passwd", 0, 4 * int(np.prod(shape)))])


def fewer(file):
    group, name = first_variable(file)
    del group[name]


@pytest.mark.parametrize(
    "spoil,fragment",
    [
        (lambda d, p: b"no zip", "not a .keras file"),
        (lambda d, p: d[: len(d) // 2], "not a .keras file"),
        (lambda d, p: changed(d, config=None), "config.json"),
        (lambda d, p: changed(d, model=None), "model.weights.h5"),
        (lambda d, p: changed(d, config='{"class_name": "Lambda", "config": {}}'), "Lambda"),
        (lambda d, p: changed(d, config=dense(5)), "do not fit"),
        (lambda d, p: changed(d, model=b"junk"), "cannot be read"),
        (lambda d, p: changed(d, model=weights_with(d, p, external_link)), "link"),
        (lambda d, p: changed(d, model=weights_with(d, p, external_storage)), "elsewhere"),
        (lambda d, p: changed(d, model=weights_with(d, p, fewer)), "do not fit"),
    ],
)
def test_files_that_are_none_or_read_other_files_are_refused(db, models, tmp_path, spoil, fragment):
    before = db.value("SELECT count(*) FROM pg_class")
    assert fragment in str(db.error("SELECT madlib.mop_import_model('nowhere', %s)", [spoil(models, tmp_path)]))
    assert db.value("SELECT count(*) FROM pg_class") == before


def test_code_in_a_file_is_refused(db, models):
    with zipfile.ZipFile(io.BytesIO(models)) as file:
        config = json.loads(file.read("config.json"))
    own = {"name": "l", "function": {"class_name": "__lambda__", "config": {}}}
    layer = {"module": "keras.layers", "class_name": "Lambda", "registered_name": None, "config": own}
    config["config"]["layers"].append(layer)
    assert "Lambda" in str(
        db.error("SELECT madlib.mop_import_model('nowhere', %s)", [changed(models, config=json.dumps(config))])
    )


def test_the_best_model_is_exported_without_mst_key(db, models):
    db.run("DROP TABLE IF EXISTS best; SELECT madlib.mop_import_model('best', madlib.mop_export_model('models', NULL))")
    assert db.value("SELECT model_weights = (SELECT model_weights FROM models WHERE mst_key = 1) FROM best")


def test_other_bad_input(db, models):
    for call, fragment in (
        ("mop_export_model('models', 7)", "mst_key 7"),
        ("mop_export_model('nope', 1)", "not exist"),
        ("mop_import_model('own', NULL)", "must not be NULL"),
        ("mop_import_model(NULL, '\\x00')", "not a .keras file"),
    ):
        assert fragment in str(db.error("SELECT madlib." + call))


# rows that training did not have: unseen values, no values, infinity, a gap in a series, a text without words
ODD = (
    "SELECT 301, NULL, NULL, NULL, 'f9', 'nowhere', NULL, NULL, ARRAY[9, 9]::real[], 'unknown words', NULL::float8[] UNION ALL "
    "SELECT 302, 'Infinity', 1e9, TRUE, NULL, 'town 1', 'infinity', interval '-1 mon', ARRAY[1, 1]::real[], ' ...', "
    "ARRAY[1e9, NULL, 1e9 + 3]::float8[]"
)
RAW = "id, price, discount, gift, form, town, placed, stay, vec, note, steps"


@pytest.fixture(scope="module", params=["classes", "numbers"])
def of_a_table(db, request):
    """(target, name of a model of a table with columns of all kinds)."""
    name = f"raw_{request.param}"
    db.run("SET pg_mop.seed = 3; SET search_path = public, madlib")
    db.run(
        "CREATE TABLE IF NOT EXISTS raw_rows AS SELECT i AS id, (i * 37 % 101 + 1e6)::float8 AS price, CASE WHEN i % 9 > 0 "
        "THEN (i * 13 % 50)::numeric END AS discount, i % 4 = 0 AS gift, CASE WHEN i % 11 > 0 THEN 'f' || i % 5 END AS form, "
        "'town ' || i % 60 AS town, CASE WHEN i % 13 > 0 THEN timestamptz '2024-01-01 05:30+00' + i * interval '17 h' END AS "
        "placed, make_interval(hours => i % 30) AS stay, ARRAY[i % 5, 1]::real[] AS vec, "
        "(SELECT array_agg((1e9 + i * k % 7)::float8) "
        "FROM generate_series(1, 1 + i % 6) k) AS steps, 'Some note, of the order ' || i || "
        "': ' || (ARRAY['fish!', 'bread'])[1 + i % 2] AS note, (ARRAY['low', 'high', NULL])[1 + i % 3] AS classes, "
        "i * 7 % 91 + 500.0 AS numbers FROM generate_series(1, 300) i"
    )
    other = {"classes": "numbers", "numbers": "classes"}[request.param]
    db.run(
        f"SELECT mop_pack('raw_rows', '{name}_packed', target => '{request.param}', id => 'id', exclude => '{other}', "
        """transform => '{"discount": "log", "price": "robust", "steps": {"kind": "series", "length": 6}}')"""
    )
    db.run(f"SELECT mop_architecture('{name}_nets', '{name}_packed', 'small')")
    loss = "categorical_crossentropy" if request.param == "classes" else "mse"
    db.run(
        f"SELECT madlib_keras_fit('{name}_packed', '{name}_fitted', '{name}_nets', 1, $$loss='{loss}', "
        "optimizer='Adam(lr=0.01)'$$, 'batch_size=32', 3)"
    )
    db.run(f"SELECT mop_deploy('{name}', '{name}_fitted')")
    return request.param, name


def test_the_file_of_a_named_model_takes_the_columns_of_the_table(db, of_a_table, tmp_path):
    target, name = of_a_table
    (tmp_path / "model.keras").write_bytes(bytes(db.value(f"SELECT madlib.mop_export_model('{name}', NULL)")))
    rows = db.run(
        f"SELECT id, price, discount, gift, form, town, stay::text, vec, note, steps, extract(epoch FROM placed)::float8 "
        f"AS at, extract(epoch FROM stay)::float8 AS length FROM (SELECT {RAW} FROM raw_rows UNION ALL {ODD}) r ORDER BY id"
    )

    def numbers(column):
        return [float("nan") if r[column] is None else float(r[column]) for r in rows]

    raw = {
        **{column: numbers(column) for column in ("price", "discount", "gift")},
        "placed": numbers("at"),
        "stay": numbers("length"),
        **{column: [r[column] or "" for r in rows] for column in ("form", "town", "note")},
        "vec": [r["vec"] for r in rows],
        "steps": [[[float("nan") if v is None else v] for v in ((r["steps"] or []) + [None] * 6)[:6]] for r in rows],
    }
    (tmp_path / "raw.json").write_text(json.dumps(raw))
    program = (
        "import json, keras, numpy, sys; p = sys.argv[1]; m = keras.models.load_model(p + '/model.keras'); "
        "raw = {k: numpy.array(v) for k, v in json.load(open(p + '/raw.json')).items()}; import tensorflow as tf; "
        "out = m({k: tf.constant(v) for k, v in raw.items()}); out = {k: numpy.asarray(v) for k, v in out.items()}; "
        "texts = [v.decode() if isinstance(v, bytes) else float(v) for v in out.pop('prediction')]; "
        "json.dump({'prediction': texts, **{k: v.tolist() for k, v in out.items()}}, open(p + '/out.json', 'w'))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs = json.loads((tmp_path / "out.json").read_text())
    query = f"SELECT {RAW} FROM raw_rows UNION ALL {ODD} ORDER BY id"
    ours = db.run(f"SELECT * FROM madlib.mop_predict('{name}', source => $${query}$$)")
    alone = db.run(f"SELECT p.* FROM ({query}) t, madlib.mop_predict('{name}', t) AS p")
    if target == "classes":
        assert theirs["prediction"] == [r["prediction"] for r in ours] == [r["prediction"] for r in alone]
        ordered = sorted(ours[0]["probabilities"])
        assert np.array(theirs["probabilities"]) == pytest.approx(
            np.array([[r["probabilities"][c] for c in ordered] for r in ours]), abs=1e-5
        )
    else:
        assert np.array(theirs["prediction"]) == pytest.approx(
            np.array([float(r["prediction"]) for r in ours]), rel=1e-5
        )
        assert [float(r["prediction"]) for r in alone] == pytest.approx(
            [float(r["prediction"]) for r in ours], rel=1e-5
        )


def test_no_vocabulary_is_read_from_a_file(db, of_a_table):
    target, name = of_a_table
    transform = json.loads(db.value(f"SELECT transform::text FROM {name}"))
    (words,) = (column for column in transform["inputs"] if column["type"] == "words")
    words["parameters"]["vocabulary"] = "/etc/passwd"
    db.run(f"DROP TABLE IF EXISTS reads_files; CREATE TABLE reads_files AS SELECT * FROM {name}")
    db.run("UPDATE reads_files SET transform = %s", [json.dumps(transform)])
    assert "is no list of texts" in str(db.error("SELECT madlib.mop_export_model('reads_files', NULL)"))
