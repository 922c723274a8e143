"""Features of ordinary tables, without a server: what is fitted from statistics, and what values become."""

import numpy as np
import pytest

from mop_udf.architecture import architecture, architecture_shapes
from pg_mop.backend.errors import MopError
from pg_mop.columns import Features, Image, Scale, Series, Words
from pg_mop.columns.features import Source, Statistics, choice
from pg_mop.columns.features.category import CodedCategory, OneHotCategory
from pg_mop.columns.features.moment import DAY, Moment
from pg_mop.columns.features.number import Boolean, Number
from pg_mop.plan import nets
from support.conformance import FeatureConformance
from support.conformance.columns import COLUMN_CASES, fitted

NAN = float("nan")


def number(values, **options):
    known = np.array([v for v in values if v == v], "f8")
    spread = np.sign(known) * np.log1p(np.abs(known)) if options.get("scale") == "log" else known
    s = Statistics(
        len(values),
        len(values) - len(known),
        spread.mean(),
        spread.std(),
        known.min(),
        known.max(),
        sample=tuple(values),
    )
    return Number.fit(Source("x", "x", "double precision", options=options), s)


def test_a_number_is_standardised_and_null_is_the_mean_with_an_indicator():
    fitted = number([1.0, 3.0, NAN, 5.0])
    assert fitted.elements == ["x", "x IS NULL"]
    assert fitted.encode(np.array([3.0, NAN])).tolist() == [[0, 0], [0, 1]]
    assert fitted.encode(np.array([5.0]))[0, 0] == pytest.approx(2 / np.std([1, 3, 5]))


def test_without_null_in_training_a_later_null_is_the_mean_alone():
    assert number([1.0, 3.0]).encode(np.array([NAN])).tolist() == [[0]]


def test_on_null_fill_has_no_indicator():
    assert number([1.0, NAN, 3.0], on_null="fill").elements == ["x"]


@pytest.mark.parametrize(
    "scale, value, wanted", [("minmax", 4.0, 1.0), ("minmax", 0.0, 0.0), ("none", 4.0, 4.0), ("robust", 2.0, 0.0)]
)
def test_scales(scale, value, wanted):
    assert number([0.0, 1.0, 2.0, 3.0, 4.0], scale=scale).encode(np.array([value]))[0, 0] == pytest.approx(wanted)


@pytest.mark.parametrize("scale", ["standard", "minmax", "robust", "log"])
def test_a_deviation_below_the_precision_of_the_values_is_none(scale):
    fitted = number([0.1, NAN, np.nextafter(0.1, 1), 0.1, 0.1], scale=scale)
    assert np.abs(fitted.encode(np.array([0.1, 0.1 + 1e-10, 0.1 - 1e-10]))[:, 0]).max() < 1e-9
    assert abs(number([0.1, 0.1 + 1e-9], scale=scale).encode(np.array([0.1 + 1e-9]))[0, 0]) > 0.4


def test_the_log_scale_standardises_logarithms():
    values = [0.0, 10.0, 1000.0]
    logs = np.log1p(values)
    wanted = (logs - logs.mean()) / logs.std()
    assert number(values, scale="log").encode(np.array(values))[:, 0] == pytest.approx(wanted, rel=1e-6)


def test_wild_values_are_kept_within_a_limit():
    fitted = number([1.0, 2.0, 3.0])
    assert fitted.encode(np.array([1e300, -np.inf]))[:, 0].tolist() == [30, -30]


def test_booleans():
    fitted = Boolean.fit(Source("b", "b", "boolean"), Statistics(4, 1, 0.5))
    assert fitted.encode(np.array([1.0, 0.0, NAN])).tolist() == [[1, 0], [0, 0], [0.5, 1]]


def category(kind, values, nulls=0, rows=None, **options):
    rows = rows if rows is not None else sum(n for _, n in values) + nulls
    return kind.fit(
        Source("c", "c", "text", options=options), Statistics(rows, nulls, values=values, distinct=len(values))
    )


def test_categories_have_classes_for_others_and_for_null():
    fitted = category(OneHotCategory, (("a", 5), ("b", 3)), nulls=2)
    assert fitted.classes == ["(other)", "a", "b", "NULL"]
    assert fitted.encode(["b", None, "new"]).tolist() == [[0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
    assert fitted.unseen(["a", "new", None]) == ["new"]


def test_rare_values_of_large_tables_share_a_class():
    fitted = category(CodedCategory, (("a", 1999), ("b", 1)))
    assert fitted.parameters["values"] == ["a"] and fitted.parameters["other"] == 1
    fitted.parameters["offset"] = 10
    assert fitted.encode(["a", "b", None]).ravel().tolist() == [11, 10, 10]


def test_moments_have_the_weekday_and_cyclic_parts():
    s = Statistics(10, 0, 500 * DAY, 100 * DAY, 0.0, 1000 * DAY, sample=tuple(DAY * k + 3600 for k in range(10)))
    fitted = Moment.fit(Source("t", "t", "timestamp without time zone"), s)
    row = fitted.encode(np.array([0.0]))[0]  # 1 January 1970, a Thursday
    named = dict(zip(fitted.elements, row.tolist()))
    assert named["t age"] == -5 and named["t Thu"] == 1 and sum(row[3:10]) == 1
    assert named["t sin(day)"] == 0 and named["t cos(day)"] == 1 and named["t cos(year)"] == 1
    monday = fitted.encode(np.array([4 * DAY + 6 * 3600]))[0]
    assert dict(zip(fitted.elements, monday.tolist()))["t Mon"] == 1 and monday[-2] == pytest.approx(1)


def test_words_are_numbered_by_frequency_padded_and_cut():
    from collections import Counter

    fitted = Words.of("w", Counter({"b": 3, "a": 3, "rare": 1}), Counter({2: 99, 50: 1}), {"max_tokens": 4}, column="w")
    assert fitted.parameters["vocabulary"] == ["a", "b"] and fitted.shape == [2]
    assert fitted.encode(["B, a!", "unknown", None, "a a a"]).tolist() == [[3, 2], [1, 0], [1, 0], [2, 2]]


class TestFeatures(FeatureConformance):
    """A new kind of feature is an entry of FEATURE_CASES in tests/support/conformance/columns.py."""


@pytest.mark.parametrize(
    "text, fragment",
    [
        ("{", "is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"a": "cubic"}', "must be one of"),
        ('{"a": {"power": 2}}', "unknown option"),
        ('{"a": {"length": 1.5}}', "positive number"),
        ('{"a": {"max_tokens": true}}', "positive number"),
        ('{"a": 3}', "must be a word or an object"),
    ],
)
def test_bad_transforms(text, fragment):
    with pytest.raises(MopError, match=fragment):
        choice.read_transform(text)


def test_paths_need_a_json_column_and_a_kind():
    has = {"p": "jsonb", "a": "text"}
    (found,) = (s for s in choice.sources(has, (), {"p->x->y": {"kind": "number"}}, "fill") if s.path)
    assert (found.column, found.path, found.sql_type) == ("p", ("x", "y"), "numeric")
    for transform, fragment in (
        ({"q": {}}, "does not exist"),
        ({"a->b": {"kind": "number"}}, "not json"),
        ({"p->x": {}}, "kind of the field"),
    ):
        with pytest.raises(MopError, match=fragment):
            choice.sources(has, (), transform, "fill")
    with pytest.raises(MopError, match="is no feature"):
        choice.sources(has, {"a"}, {"a": {"kind": "text"}}, "fill")


def test_leaks_and_identifiers_are_seen():
    targets = ["yes" if k % 3 else "no" for k in range(60)]
    assert choice.leaks([t.upper() for t in targets], targets, False)
    assert not choice.leaks([str(k % 4) for k in range(60)], targets, False)
    assert not choice.leaks([k / 7 for k in range(60)], [f"class {k % 40}" for k in range(60)], False), (
        "no value repeats"
    )
    assert choice.leaks([2.0 * k for k in range(60)], [float(k) for k in range(60)], True)
    s = Statistics(60, 0, 30.0, 17.0, 1.0, 60.0, sample=tuple(map(float, range(1, 61))))
    assert choice.looks_like_id(Source("n", "n", "integer"), s)
    assert not choice.looks_like_id(Source("n", "n", "double precision"), s)


LONG = {"shape": [300, 2], "means": [0.0, 0.0], "deviations": [1.0, 1.0], "dimensions": 2}
COLUMNS = {
    **{kind.type_name: COLUMN_CASES[kind].column for kind in (Features, Scale, Words, Series, Image)},
    "codes": Features.of("codes", [fitted(CodedCategory), fitted(CodedCategory)]),
    "long series": Series("long", LONG),
    "large image": Image("large", {"shape": [16, 16, 3], "bytes": 100}),
}
INPUTS = {name: column.net_input() for name, column in COLUMNS.items()}


@pytest.mark.parametrize("body", nets.BODIES)
def test_every_net_is_an_architecture_that_may_be_loaded(body):
    for inputs in (*([name] for name in INPUTS), list(INPUTS)):
        heads = [nets.Output("y", 3), nets.Output("z z")]
        checked = architecture.check(nets.architecture([INPUTS[i] for i in inputs], heads, nets.BODIES[body]))
        assert architecture_shapes.output_widths(checked, 2) == [3, 1]
        assert architecture_shapes.input_shapes(checked) == [list(INPUTS[i].shape) for i in inputs]


def test_columns_that_are_fitted_on_other_rows_differ():
    """Packed values of two transforms with other scales, categories or words are not comparable."""

    def packed(values=(1.0, 3.0), kinds=("a", "b"), name="features"):
        statistics = Statistics(9, 0, values=tuple((kind, 3) for kind in kinds), distinct=len(kinds))
        return Features.of(name, [number(list(values)), OneHotCategory.fit(Source("c", "c", "text"), statistics)])

    own = packed()
    assert own.difference(packed(name="others")) is None
    assert own.difference(packed((1.0, 3.0 + 1e-12))) is None  # (sums in another order)
    assert '"x"' in own.difference(packed((1.0, 4.0))) and '"c"' in own.difference(packed(kinds=("a", "z")))
    assert "columns x" in own.difference(Features.of("features", own.features[:1]))
    words = {name: Words(name, {"vocabulary": list(name), "shape": [3]}) for name in ("ab", "ba")}
    assert words["ab"].difference(words["ab"]) is None and '"ab"' in words["ab"].difference(words["ba"])
