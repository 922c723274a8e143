"""Boosted trees: LightGBM's text is read strictly, and computed as LightGBM computes it."""

import json
import re

import numpy as np
import pytest

from mop_udf.architecture.architecture import ArchitectureError, check
from pg_mop.columns import Features, Series
from pg_mop.columns.features.category import CodedCategory, OneHotCategory
from pg_mop.columns.features.number import Number
from pg_mop.inference import trees
from pg_mop.inference.ensemble import Mixture
from pg_mop.inference.tree_inputs import TreeInputs

# two trees for two elements: a number and a category, then one leaf
TEXT = """tree
version=v4
num_class=1
num_tree_per_iteration=1
label_index=0
max_feature_idx=1
objective=binary sigmoid:1
feature_names=Column_0 Column_1
feature_infos=[0:1] 0:1:2
tree_sizes=400 100

Tree=0
num_leaves=3
num_cat=1
split_feature=0 1
split_gain=2 1
threshold=0.5 0
decision_type=10 1
left_child=1 -1
right_child=-2 -3
leaf_value=1 2 3
leaf_weight=1 1 1
leaf_count=1 1 1
internal_value=0 0
internal_weight=0 0
internal_count=3 2
cat_boundaries=0 1
cat_threshold=5
is_linear=0
shrinkage=1


Tree=1
num_leaves=1
num_cat=0
split_feature=
threshold=
decision_type=
left_child=
right_child=
leaf_value=-2
is_linear=0
shrinkage=1


end of trees
"""
NAN = float("nan")


def test_each_row_goes_its_way():
    rows = np.array([[0.5, 0], [0.4, 1], [NAN, 2], [0, NAN], [0.6, 0], [0, -1], [0, 40], [0, 1e30]], "f4")
    # sets have the categories 0 and 2; NaN of the number goes left
    leaves = np.array([1, 3, 1, 3, 2, 3, 3, 3])
    found = trees.read(TEXT.encode(), 2)
    assert np.allclose(found(rows)[:, 1], 1 / (1 + np.exp(2.0 - leaves)))
    assert np.array_equal(np.concatenate([found(row[None]) for row in rows]), found(rows))
    assert found(rows[:0]).shape == (0, 2)


@pytest.mark.parametrize(
    "pattern, text",
    [
        ("version=v4", "version=v3"),
        ("binary sigmoid:1", "poisson"),
        ("binary sigmoid:1", "multiclass num_class:3"),
        ("num_class=1", "num_class=2"),
        ("max_feature_idx=1", "max_feature_idx=2"),
        ("split_feature=0 1", "split_feature=0 2"),
        ("split_feature=0 1", "split_feature=0 -1"),
        ("split_feature=0 1", "split_feature=0"),
        ("split_feature=0 1", "split_feature=0 1 1"),
        ("split_feature=0 1", "split_feature=0 99999999999999999999"),
        ("threshold=0.5 0", "threshold=0.5 nan"),
        ("threshold=0.5 0", "threshold=0.5 1"),  # the number of a set
        ("threshold=0.5 0", "threshold=0.5 -0.5"),
        ("threshold=0.5 0", "threshold=0.5 e"),
        ("decision_type=10 1", "decision_type=10 16"),
        ("decision_type=10 1", "decision_type=14 1"),
        ("left_child=1 -1", "left_child=0 -1"),  # a circle
        ("left_child=1 -1", "left_child=1 -4"),
        ("left_child=1 -1", "left_child=1 -2"),  # a leaf of two nodes
        ("left_child=1 -1", "left_child=1 2"),
        ("leaf_value=1 2 3", "leaf_value=1 2 inf"),
        ("leaf_value=1 2 3", "leaf_value=1 2"),
        ("leaf_value=1 2 3", "leaf=1 2 3"),
        ("cat_boundaries=0 1", "cat_boundaries=0 2"),
        ("cat_boundaries=0 1", "cat_boundaries=1 1"),
        ("cat_boundaries=0 1", "cat_boundaries=0 99999999"),
        ("cat_threshold=5", "cat_threshold=4294967296"),
        ("num_cat=1", "num_cat=0"),
        ("num_leaves=3", "num_leaves=99999999"),
        ("num_leaves=3", "num_leaves=0"),
        ("is_linear=0", "is_linear=1"),
        ("Tree=1", "Tree=2"),
        ("\nTree=1", "\naverage_output\nTree=1"),
        ("objective=", "average_output\nobjective="),
        ("end of trees", ""),
        ("tree\n", "tree\u00e9\n"),
        ("Tree=[^$]*", "end of trees\n"),
    ],
)
def test_another_text_is_refused(pattern, text):
    changed, count = re.subn(pattern, text, TEXT, count=1)
    assert count == 1 and changed != TEXT
    with pytest.raises(trees.BadTrees):
        trees.read(changed.encode(), 2)


def test_every_end_of_a_text_is_refused():
    for end in range(len(TEXT) - 1):
        with pytest.raises(trees.BadTrees):
            trees.read(TEXT[:end].encode(), 2)


@pytest.mark.parametrize("objective, classes", [("binary", 1), ("regression", 1), ("multiclass", 3)])
@pytest.mark.parametrize("missing", ["nan", "zero", "none"])
def test_answers_are_those_of_lightgbm(objective, classes, missing):
    lightgbm = pytest.importorskip("lightgbm", reason="not run: LightGBM is not installed (pip install lightgbm)")
    random = np.random.default_rng(3)
    x = random.normal(size=(1500, 5)).astype("f4")
    x[:, 3], x[:, 4] = random.integers(0, 70, 1500), random.integers(0, 5, 1500)
    if missing != "none":
        x[random.random(x.shape) < 0.15] = NAN if missing == "nan" else 0
    known = np.nan_to_num(x)
    y = known[:, 0] + known[:, 3] % 3 + random.normal(size=1500)
    if objective != "regression":
        y = np.digitize(y, [0.5, 1.5][: max(1, classes - 1)])
    params = {
        "objective": objective,
        "num_class": classes,
        "verbosity": -1,
        "num_leaves": 31,
        "min_data_in_leaf": 3,
        "min_data_per_group": 3,
        "zero_as_missing": missing == "zero",
        "num_threads": 1,
    }
    rows = lightgbm.Dataset(x, y, categorical_feature=[3, 4], params=params)
    model = lightgbm.train(params, rows, 25)
    others = x.copy()
    for value in (NAN, 0, 1e30, -7.5, 3.7, np.inf):
        others[random.random(x.shape) < 0.03] = value
    own = trees.read(model.model_to_string().encode(), 5)
    found, wanted = own(others), model.predict(others)
    assert np.array_equal(np.concatenate([own(row[None]) for row in others[:50]]), found[:50])
    wanted = np.stack([1 - wanted, wanted], 1) if objective == "binary" else wanted.reshape(1500, -1)
    assert np.allclose(found, wanted, rtol=0, atol=1e-6)


def column(*features):
    return Features.of("features", features)


def test_trees_take_codes_and_no_value_as_such():
    common = {"column": "c", "sql_type": "text", "rows": 3, "nulls": 0}
    classes = {**common, "values": ["a", "b"], "counts": [2, 1], "other": 0, "null": False}
    number = {
        **common,
        "sql_type": "float8",
        "scale": "standard",
        "center": 0.0,
        "factor": 1.0,
        "fill": 0.0,
        "indicator": True,
    }
    first = column(Number("n", number), OneHotCategory("o", classes))
    second = column(CodedCategory("c", {**classes, "offset": 7}))
    inputs = TreeInputs([first, second])
    packed = [np.array([[1.5, 0, 0, 0, 1], [0, 1, 1, 0, 0]], "f4"), np.array([[7], [9]], "f4")]
    assert inputs.codes == [1, 2] and inputs.width == 3
    assert np.array_equal(inputs.elements(packed), np.array([[1.5, 2, 0], [NAN, 0, 2]], "f4"), equal_nan=True)
    assert not TreeInputs.are_possible([first, Series("s", {"shape": [3, 1]})])


@pytest.mark.parametrize(
    "changed",
    [
        {"bytes": 3},
        {"bytes": True},
        {"weight": NAN},
        {"weight": 2},
        {"trees": []},
        {"trees": [{"weight": 0.5, "bytes": -4}, {"weight": 0.5, "bytes": 10}]},
        {"net": None},
    ],
)
def test_a_changed_mixture_is_refused(changed):
    mixture = Mixture('{"class_name": "Sequential"}', 0.25, 8, ((0.75, 6),))
    text = mixture.to_json()
    assert Mixture.read(text, 14) == mixture and mixture.places() == [(0.75, 8, 6)]
    with pytest.raises(ArchitectureError):  # no reader takes it for a net
        check(text)
    data = json.loads(text)
    data["config"] |= changed
    with pytest.raises(ValueError):
        Mixture.read(json.dumps(data), 14)
