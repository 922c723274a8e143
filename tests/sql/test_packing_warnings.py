"""training_preprocessor_dl warns of numbers that become classes, and of elements of very different scale."""

import pytest


def warned(db, x, y, rows=400, more=""):
    """The warnings about a table of rows i, with the columns `x` and `y`."""
    db.run(
        "DROP TABLE IF EXISTS raw, raw_packed, raw_packed_summary; "
        f"CREATE TABLE raw AS SELECT i, {x} AS x, {y} AS y FROM generate_series(1, {rows}) AS i"
    )
    del db.connection.notices[:]
    db.run(f"SELECT madlib.training_preprocessor_dl('raw', 'raw_packed', 'y', 'x'{more})")
    return [n for n in db.connection.notices if n.startswith("WARNING")]


@pytest.mark.parametrize(
    "y,count",
    [
        ("i", 400),
        ("i / 7.0", 400),
        ("(i % 12)::real + 0.5::real", 12),
        ("CASE WHEN i % 2 = 0 THEN NULL ELSE i / 2.0::float8 END", 200),
    ],
)
def test_numbers_that_become_many_classes_are_warned_of_with_the_argument_that_keeps_them(db, y, count):
    (warning,) = warned(db, "ARRAY[i]", y)
    assert 'column "y" of type' in warning and f"is packed as {count} classes" in warning
    assert "dependent_dtype => 'float32'" in warning
    assert not warned(db, "ARRAY[i]", f"coalesce({y}, 0)", more=", dependent_dtype => 'float32'")


@pytest.mark.parametrize(
    "y,rows",
    [("i % 10", 400), ("(i % 2) / 2.0", 400), ("(i % 120)::text", 400), ("i % 101", 3000), ("i % 12 + 0.0", 400)],
)
def test_numbers_that_may_be_classes_are_packed_without_a_warning(db, y, rows):
    assert not warned(db, "ARRAY[i]", y, rows)


def test_elements_of_very_different_scale_are_named(db):
    (warning,) = warned(db, "ARRAY[i / 400.0, i * 30000, 0, i % 5]", "i % 3")
    assert 'elements of column "x" differ in scale by more than 1000 times' in warning
    assert "in 400 rows: 1.2e+07 of element 2; 1 of element 1, 4 of element 4." in warning
    assert "Standardise the elements" in warning


@pytest.mark.parametrize(
    "x", ["ARRAY[i / 400.0, 999.0]", "ARRAY[0, 0, i]", "ARRAY[[i, i * 100000], [1, 2]]", "ARRAY[i * 1000000]"]
)
def test_elements_of_like_scale_and_pictures_have_no_warning(db, x):
    assert not warned(db, x, "i % 3")


def test_what_packing_refuses_is_its_error_alone(db):
    db.run(
        "DROP TABLE IF EXISTS raw; CREATE TABLE raw AS SELECT i, CASE WHEN i < 9 THEN ARRAY[1, 9999] ELSE ARRAY[1] END AS x, "
        "i % 2 AS y FROM generate_series(1, 9) AS i; DROP TABLE IF EXISTS never"
    )
    del db.connection.notices[:]
    assert 'column "x"' in str(db.error("SELECT madlib.training_preprocessor_dl('raw', 'never', 'y', 'x')"))
    assert not [n for n in db.connection.notices if n.startswith("WARNING")]
