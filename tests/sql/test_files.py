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

from workload import ADAM, dense, fit, load, make_data, selection


@pytest.fixture(scope="module")
def models(db):
    make_data(db)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=8")])
    fit(db, "flowers_packed", "models", "mst", 2)
    db.run("SELECT madlib.madlib_keras_predict('models', 'flowers', 'id', 'x', 'guesses', 'prob', FALSE, 1)")
    return bytes(db.value("SELECT madlib.mop_export_model('models', 1)"))


@pytest.mark.slice
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
        (lambda d, p: b"", "not a .keras file"),
        (lambda d, p: d[: len(d) // 2], "not a .keras file"),
        (lambda d, p: changed(d, config=None), "config.json"),
        (lambda d, p: changed(d, model=None), "model.weights.h5"),
        (lambda d, p: changed(d, config="{no"), "not a .keras file"),
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
    config["config"]["layers"].append(
        {
            "module": "keras.layers",
            "class_name": "Lambda",
            "registered_name": None,
            "config": {"name": "l", "function": {"class_name": "__lambda__", "config": {}}},
        }
    )
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
