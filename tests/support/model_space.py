"""What the tests of searches over a model space share: rows, the space `nets`, settings, and the tables of a search."""

import json

from support.workload import dense, load, make_data

# of every session that searches
SETTINGS = "SET pg_mop.kernel = 'plain'; SET pg_mop.seed = 3; SET pg_mop.lock_timeout = '300s'"
SPACE = (
    "{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'optimizer_params_list': [{'optimizer': "
    "['Adam'], 'lr': [0.01]}], 'batch_size': [8]}"
)
TABLES = ("", "_info", "_summary", "_trials", "_one_shot")  # the ends of the names of a search's tables


def make_space(db, mutators):
    """The packed table `flowers_packed` in two segments, and the model space `nets` of the dense net with these mutators."""
    make_data(db, segments=2)
    load(db, "arch", dense())
    db.run(SETTINGS)
    db.run("SELECT madlib.mop_space('nets', 'arch', ARRAY[1], %s::text)", [json.dumps(mutators)])


def drop(db, output):
    """Drop the tables of a search, where they exist."""
    db.run("DROP TABLE IF EXISTS " + ", ".join(output + suffix for suffix in TABLES))


def weights(db, output):
    """The models of a search, with digests of their weights."""
    return db.run(f"SELECT mst_key, model_arch::text, md5(model_weights) AS w FROM {output} ORDER BY 1")
