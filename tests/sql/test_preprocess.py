"""The preprocessors and their helpers on a real server."""

import math
import re
import uuid
from datetime import date

import numpy as np
import psycopg2
import pytest

COUNT = 0


def fresh():
    """A table name that no test has used."""
    global COUNT
    COUNT += 1
    return f"p{COUNT}"


@pytest.fixture(autouse=True)
def settings(db):
    db.run("RESET ALL; SET pg_mop.segments = 1; SET pg_mop.seed = 1")


@pytest.fixture(scope="module", autouse=True)
def data(db):
    """`rows17`: 17 rows of 6 elements (1 to 233), 14 integer classes, and labels of other types."""
    db.run("""
        CREATE TABLE rows17 AS
        SELECT i AS id, CASE i WHEN 1 THEN ARRAY[1,2,3,4,5,6]::real[] WHEN 2 THEN ARRAY[233,1,1,1,1,1]::real[]
               ELSE ARRAY[i, i * 2, i * 3, i * 4, i * 5, i * 6]::real[] END AS x,
               (ARRAY[-6,-3,0,1,2,3,4,5,6,7,8,9,10,12,4,4,4])[i] AS y, (i % 2 = 0) AS flag,
               (ARRAY['a','b','c'])[1 + i % 3] AS letter, (ARRAY[4.0,4.2,5.0]::float8[])[1 + i % 3] AS amount,
               CASE WHEN i % 2 = 0 THEN ARRAY[1,0]::float8[] ELSE ARRAY[0,1]::float8[] END AS hot8,
               CASE WHEN i % 2 = 0 THEN ARRAY[1,0] ELSE ARRAY[0,1] END AS hot4,
               CASE WHEN i % 3 > 0 THEN (ARRAY['a','b'])[i % 3] END AS holes, NULL::text AS nothing
        FROM generate_series(1, 17) i""")


def train(db, source="rows17", y="y", x="x", *rest, output=None):
    """Pack; returns the output table's name. `rest`: buffer_size, normalizing_const, num_classes."""
    output = output or fresh()
    arguments = [source, output, y, x, *rest]
    marks = ["%s"] * len(arguments)
    if len(rest) > 2:
        marks[6] = "%s::integer[]"
    db.run(f"SELECT madlib.training_preprocessor_dl({', '.join(marks)})", arguments)
    return output


def validate(db, training, source="rows17", y="y", x="x", *rest, output=None):
    output = output or fresh()
    arguments = [source, output, y, x, training, *rest]
    db.run(f"SELECT madlib.validation_preprocessor_dl({', '.join(['%s'] * len(arguments))})", arguments)
    return output


def buffers(db, table):
    return [
        {k: bytes(v) if isinstance(v, memoryview) else v for k, v in row.items()}
        for row in db.run(f"SELECT * FROM {table} ORDER BY buffer_id")
    ]


def unpack(db, table, column, dtype):
    """The rows of a packed column, decoded as every consumer does."""
    return np.concatenate([np.frombuffer(b[column], dtype).reshape(b[column + "_shape"]) for b in buffers(db, table)])


def labels(db, table, column="y"):
    return unpack(db, table, column, "<i2").tolist()


def summary(db, table):
    return db.run(f"SELECT * FROM {table}_summary")[0]


# --- buffers: number, size, layout ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows, segments, requested, sizes",
    [(52, 3, None, [18, 18, 16]), (52, 3, 10, [9, 9, 9, 9, 9, 7]), (17, 1, 5, [5, 5, 5, 2]), (5, 2, 1000, [3, 2])],
)
def test_rows_are_split_into_buffers_as_the_contract_says(db, rows, segments, requested, sizes):
    db.run(f"SET pg_mop.segments = {segments}")
    db.run(f"CREATE OR REPLACE VIEW lines AS SELECT ARRAY[i, 2] AS x, i % 2 AS y FROM generate_series(1, {rows}) i")
    packed = train(db, "lines", "y", "x", requested)
    got = buffers(db, packed)
    assert [b["x_shape"][0] for b in got] == sizes == [b["y_shape"][0] for b in got]
    assert [b["buffer_id"] for b in got] == list(range(len(sizes)))
    assert [b["__dist_key__"] for b in got] == [i % segments for i in range(len(sizes))]
    assert summary(db, packed)["buffer_size"] == sizes[0]
    validation = validate(db, packed, "lines", "y", "x", requested)
    assert [b["x_shape"][0] for b in buffers(db, validation)] == sizes


def test_columns_of_the_packed_table_are_in_the_contract_order(db):
    packed = train(db, "rows17", "y, letter", "x")
    assert list(db.run(f"SELECT * FROM {packed}")[0]) == [
        "__dist_key__",
        "x",
        "y",
        "letter",
        "x_shape",
        "y_shape",
        "letter_shape",
        "buffer_id",
    ]
    types = db.run(
        f"SELECT pg_typeof(x)::text AS x, pg_typeof(y)::text AS y, pg_typeof(x_shape)::text AS s FROM {packed}"
    )
    assert types == [{"x": "bytea", "y": "bytea", "s": "integer[]"}]


def test_training_packs_every_row_once_and_keeps_x_with_its_label(db):
    packed = train(db, "rows17", "y", "x", 4)
    x, y = unpack(db, packed, "x", "<f4"), unpack(db, packed, "y", "<i2")
    classes = summary(db, packed)["y_class_values"]
    got = sorted((row.tolist(), classes[int(np.argmax(hot))]) for row, hot in zip(x, y))
    assert (y.sum(axis=1) == 1).all()
    assert got == sorted((r["x"], r["y"]) for r in db.run("SELECT x, y FROM rows17"))


def test_validation_bytes_are_the_source_rows_in_scan_order(db):
    packed = train(db)
    validation = validate(db, packed, "rows17", "y", "x", 5)
    source = db.run("SELECT x, y FROM rows17")
    classes = summary(db, packed)["y_class_values"]
    assert b"".join(b["x"] for b in buffers(db, validation)) == np.array([r["x"] for r in source], "<f4").tobytes()
    hot = np.eye(len(classes), dtype="<i2")[[classes.index(r["y"]) for r in source]]
    assert b"".join(b["y"] for b in buffers(db, validation)) == hot.tobytes()


def test_arrays_of_more_dimensions_are_packed_row_major(db):
    db.run(
        "CREATE TABLE images AS SELECT ARRAY[[[1,2,3],[4,5,6]],[[7,8,9],[i,i,i]]]::numeric[] AS img, i AS y "
        "FROM generate_series(1, 4) i"
    )
    packed = validate(db, train(db, "images", "y", "img"), "images", "y", "img")
    assert buffers(db, packed)[0]["img_shape"] == [4, 2, 2, 3]
    assert unpack(db, packed, "img", "<f4")[2].ravel().tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 3, 3]


@pytest.mark.parametrize("element", ["smallint", "integer", "bigint", "numeric", "real", "double precision"])
def test_every_numeric_array_type_is_an_input(db, element):
    db.run(f"CREATE OR REPLACE VIEW typed_{element[:4]} AS SELECT ARRAY[1, 2.5]::{element}[] AS x, 1 AS y")
    packed = train(db, f"typed_{element[:4]}")
    want = db.value(f"SELECT x::real[] FROM typed_{element[:4]}")
    assert unpack(db, packed, "x", "<f4").tolist() == [want]


def test_lower_bounds_other_than_one_do_not_matter(db):
    db.run("CREATE OR REPLACE VIEW bounds AS SELECT '[0:1]={1,2}'::real[] AS x, 1 AS y UNION ALL SELECT '{3,4}', 1")
    assert sorted(unpack(db, train(db, "bounds"), "x", "<f4").tolist()) == [[1, 2], [3, 4]]


# --- where buffers go -----------------------------------------------------------------------------------


def test_every_segment_has_its_partition_even_an_empty_one(db):
    db.run("SET pg_mop.segments = 4")
    packed = train(db, "rows17", "y", "x", 17)
    parts = db.run(
        "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) AS bound FROM pg_inherits i "
        f"JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = '{packed}'::regclass ORDER BY 1"
    )
    assert [(p["relname"], p["bound"]) for p in parts] == [
        (f"{packed}_segment_{k}", f"FOR VALUES IN ({k})") for k in range(4)
    ]
    db.run("CREATE TABLE two AS SELECT * FROM rows17 LIMIT 2")
    packed = train(db, "two")
    assert [db.value(f"SELECT count(*) FROM {packed}_segment_{k}") for k in range(4)] == [1, 1, 0, 0]


def test_buffer_counts_of_segments_differ_by_one_at_most(db):
    db.run("SET pg_mop.segments = 3")
    packed = train(db, "rows17", "y", "x", 1)
    counts = [r["n"] for r in db.run(f"SELECT count(*) AS n FROM {packed} GROUP BY __dist_key__")]
    assert sum(counts) == 17 and set(counts) <= {17 // 3, math.ceil(17 / 3)}
    assert summary(db, packed)["__internal_gpu_config__"] == "all_segments"


def test_x_is_stored_uncompressed_in_every_partition(db):
    db.run("SET pg_mop.segments = 2")
    packed = train(db)
    assert [
        r["attstorage"]
        for r in db.run(
            "SELECT attstorage FROM pg_attribute WHERE attname = 'x' AND attrelid::regclass::text LIKE "
            f"'{packed}%' AND attrelid::regclass::text NOT LIKE '%key%'"
        )
    ] == ["e"] * 3


def test_output_goes_to_the_named_schema_and_quotes_are_honoured(db):
    db.run('CREATE SCHEMA "Other S"')
    train(db, output='"Other S"."My ""packed"" t"')
    assert db.value('SELECT output_table FROM "Other S"."My ""packed"" t_summary"') == '"Other S"."My ""packed"" t"'
    assert db.value('SELECT count(*) FROM "Other S"."My ""packed"" t_segment_0"') == 1


def test_same_seed_gives_the_same_bytes_and_another_seed_another_order(db):
    db.run("SET pg_mop.seed = 42")
    one, two = train(db, "rows17", "y", "x", 5), train(db, "rows17", "y", "x", 5)
    db.run("SET pg_mop.seed = 43")
    three = train(db, "rows17", "y", "x", 5)
    assert buffers(db, one) == buffers(db, two) != buffers(db, three)
    assert "seed 42" in db.value(f"SELECT obj_description('{one}'::regclass)")


# --- order ------------------------------------------------------------------------------------------------


def test_training_rows_are_shuffled_over_the_whole_table(db):
    db.run("CREATE OR REPLACE VIEW line AS SELECT ARRAY[i] AS x, 1 AS y FROM generate_series(1, 1000) i")
    x = unpack(db, train(db, "line"), "x", "<f4").ravel()
    assert sorted(x) == list(range(1, 1001)) and abs(np.corrcoef(x, np.arange(1000))[0, 1]) < 0.15


def test_settings_changed_for_the_scan_are_restored(db):
    db.run("SET max_parallel_workers_per_gather = 3; SET synchronize_seqscans = on")
    db.run("BEGIN")
    train(db)
    assert [
        db.value(f"SHOW {name}")
        for name in ("max_parallel_workers_per_gather", "synchronize_seqscans", "plan_cache_mode")
    ] == ["3", "on", "auto"]
    db.run("ROLLBACK")


def test_rollback_takes_the_tables_back(db):
    db.run("BEGIN")
    packed = train(db)
    db.run("ROLLBACK")
    assert db.value(f"SELECT to_regclass('{packed}') IS NULL AND to_regclass('{packed}_summary') IS NULL")


# --- scaling ------------------------------------------------------------------------------------------------


def test_values_are_divided_by_the_constant_also_in_validation(db):
    packed = train(db, "rows17", "y", "x", None, 5)
    for table in (packed, validate(db, packed)):
        x = unpack(db, table, "x", "<f4")
        assert x.min() == pytest.approx(0.2, rel=1e-5) and x.max() == pytest.approx(46.6, rel=1e-5)
        assert summary(db, table)["normalizing_const"] == 5.0
        assert db.value(f"SELECT pg_typeof(normalizing_const)::text FROM {table}_summary") == "real"


@pytest.mark.parametrize("constant", [None, 1.0, 1.0000001])
def test_constant_null_or_one_keeps_the_values_and_is_recorded_as_one(db, constant):
    packed = train(db, "rows17", "y", "x", None, constant)
    assert unpack(db, packed, "x", "<f4").max() == 233 and summary(db, packed)["normalizing_const"] == 1.0


# --- classes ------------------------------------------------------------------------------------------------


def test_num_classes_widens_the_vectors_and_pads_the_class_values(db):
    packed = train(db, "rows17", "y", "x", 5, 5, [16])
    row = summary(db, packed)
    assert buffers(db, packed)[0]["y_shape"] == [5, 16]
    assert row["y_class_values"] == [-6, -3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, None, None]
    assert row == {
        "source_table": "rows17",
        "output_table": packed,
        "dependent_varname": ["y"],
        "independent_varname": ["x"],
        "dependent_vartype": ["integer"],
        "y_class_values": row["y_class_values"],
        "buffer_size": 5,
        "normalizing_const": 5.0,
        "num_classes": [16],
        "distribution_rules": "all_segments",
        "__internal_gpu_config__": "all_segments",
    }
    assert all(hot[14:] == [0, 0] for hot in labels(db, packed))


def test_summary_columns_have_the_contract_types(db):
    packed = train(db)
    types = db.value(
        "SELECT string_agg(attname || ' ' || format_type(atttypid, NULL), ', ' ORDER BY attnum) FROM pg_attribute "
        f"WHERE attrelid = '{packed}_summary'::regclass AND attnum > 0"
    )
    assert types == (
        "source_table text, output_table text, dependent_varname text[], independent_varname text[], dependent_vartype "
        "text[], y_class_values integer[], buffer_size integer, normalizing_const real, num_classes integer[], "
        "distribution_rules text, __internal_gpu_config__ text"
    )


def test_validation_of_one_row_uses_training_classes_constant_and_other_names(db):
    packed = train(db, "ROWS17", "Y", " X ", 5, 5, [16])  # (names fold)
    db.run("CREATE OR REPLACE VIEW one_row AS SELECT x AS other_x, y AS other_y FROM rows17 WHERE id = 7")
    validation = validate(db, packed, "one_row", "other_y", "other_x")
    assert unpack(db, validation, "other_x", "<f4")[0] == pytest.approx(np.arange(1, 7) * 7 / 5)
    assert labels(db, validation, "other_y") == [[int(k == 6) for k in range(16)]]
    row = summary(db, validation)
    assert row["other_y_class_values"] == summary(db, packed)["y_class_values"] and row["num_classes"] == [16]
    assert (row["buffer_size"], row["normalizing_const"], row["dependent_varname"]) == (1, 5.0, ["other_y"])


@pytest.mark.parametrize("column, kind", [("hot8", "double precision[]"), ("hot4", "integer[]")])
def test_numeric_array_labels_pass_through(db, column, kind):
    packed = train(db, "rows17", column)
    validation = validate(db, packed, "rows17", column)
    source = [r["h"] for r in db.run(f"SELECT {column}::int[] AS h FROM rows17")]
    assert sorted(labels(db, packed, column)) == sorted(source) and labels(db, validation, column) == source
    for table in (packed, validation):
        row = summary(db, table)
        assert (row[column + "_class_values"], row["num_classes"], row["dependent_vartype"]) == (None, [], [kind])


def test_num_classes_of_a_numeric_array_records_its_real_width(db):
    assert summary(db, train(db, "rows17", "hot4", "x", None, 1, [7]))["num_classes"] == [2]


def test_null_is_the_first_class(db):
    packed = train(db, "rows17", "holes", "x", None, 1, [5])
    validation = validate(db, packed, "rows17", "holes")
    for table in (packed, validation):
        assert summary(db, table)["holes_class_values"] == [None, "a", "b", None, None]
    hot = {None: [1, 0, 0, 0, 0], "a": [0, 1, 0, 0, 0], "b": [0, 0, 1, 0, 0]}
    assert labels(db, validation, "holes") == [hot[r["holes"]] for r in db.run("SELECT holes FROM rows17")]
    assert sorted(labels(db, packed, "holes")) == sorted(labels(db, validation, "holes"))


def test_only_null_labels_are_one_class(db):
    db.run("CREATE OR REPLACE VIEW four AS SELECT * FROM rows17 LIMIT 4")
    packed = train(db, "four", "nothing", "x", None, 1, [3])
    for table in (packed, validate(db, packed, "four", "nothing")):
        assert summary(db, table)["nothing_class_values"] == [None, None, None]
        assert labels(db, table, "nothing") == [[1, 0, 0]] * 4 and len(buffers(db, table)[0]["nothing"]) == 24


@pytest.mark.parametrize(
    "kind, values, ordered",
    [
        ("date", ["2024-02-29", None, "1999-12-31"], [None, date(1999, 12, 31), date(2024, 2, 29)]),
        ("interval", ["1 month -3 days 00:00:01.5", "2 days"], None),
        ("uuid", [str(uuid.UUID(int=5)), str(uuid.UUID(int=3)), None], None),
        ("mood", ["sad", "happy", None, "a,b\"c'"], None),
        ("numeric", ["4.0", "4.00", "3.123456789012345678901234567890", "-1"], None),
        ("float8", ["0.1", "0.30000000000000004", "0.3", "NaN", "-0", "0"], None),
        ("real", ["0.1", "16777216", "16777217"], None),
        ("bigint", ["9007199254740993", "9007199254740992"], [9007199254740992, 9007199254740993]),
        ("smallint", ["-1", "-2", None], [None, -2, -1]),
        (
            "text",
            ["it's", 'say "x"', "back\\slash", "NULL", "", " ", "{a,b}", "Z", "a", "Ä", None],
            [None, "", " ", "NULL", "Z", "a", "back\\slash", "it's", 'say "x"', "{a,b}", "Ä"],
        ),
        ("varchar(5)", ["b", "a"], ["a", "b"]),
        ("char(3)", ["b", "abc", "a"], None),
        ("bytea", ["\\x00ff", "\\x"], None),
        ("jsonb", ['{"a": 1}', "[2]"], None),
        ("boolean", ["true", None], [None, True]),
        ("short_text", ["yy", "x"], ["x", "yy"]),
    ],
)
def test_labels_of_every_scalar_type_come_back_exactly(db, kind, values, ordered):
    db.run(
        "DO $$ BEGIN CREATE TYPE mood AS ENUM ('sad', 'happy', 'a,b\"c'''); CREATE DOMAIN short_text AS text; "
        "EXCEPTION WHEN duplicate_object THEN NULL; END $$"
    )
    source = fresh()
    db.run(f"CREATE TABLE {source} (x real[], y {kind})")
    for i, value in enumerate(values * 2):
        db.run(f"INSERT INTO {source} VALUES (ARRAY[%s]::real[], %s)", [float(i), value])
    packed = train(db, source)
    if ordered is not None:
        assert summary(db, packed)["y_class_values"] == ordered
    for table in (packed, validate(db, packed, source)):
        # the class at the position of each 1, compared with the source by the server
        codes = {x: hot.index(1) + 1 for (x,), hot in zip(unpack(db, table, "x", "<f4").tolist(), labels(db, table))}
        assert len(codes) == 2 * len(values) and all(sum(hot) == 1 for hot in labels(db, table))
        for x, code in codes.items():
            assert db.value(
                f"SELECT s.y IS NOT DISTINCT FROM y_class_values[%s] FROM {table}_summary, {source} s "
                "WHERE s.x[1] = %s",
                [code, x],
            )
    distinct = db.value(f"SELECT count(*) FROM (SELECT DISTINCT y FROM {source}) d")
    assert summary(db, packed)["num_classes"] == [distinct]


def test_text_classes_are_ordered_by_code_point_whatever_the_collation(db):
    db.run('CREATE TABLE collated (x int[], y text COLLATE "en-x-icu")')
    db.run("INSERT INTO collated VALUES ('{1}', 'b'), ('{1}', 'B'), ('{1}', 'a'), ('{1}', 'é')")
    assert summary(db, train(db, "collated"))["y_class_values"] == ["B", "a", "b", "é"]


@pytest.mark.parametrize(
    "training, validation",
    [
        ("'a'::text", "'a'::varchar"),
        ("'a'::varchar", "'a'::char(1)"),
        ("1::smallint", "1.0::numeric"),
        ("1::float8", "1::bigint"),
        ("2.5::real", "2.5::float8"),
    ],
)
def test_string_types_and_number_types_are_compatible_with_each_other(db, training, validation):
    db.run(
        f"DROP VIEW IF EXISTS k1, k2; CREATE VIEW k1 AS SELECT ARRAY[1] AS x, {training} AS y; "
        f"CREATE VIEW k2 AS SELECT ARRAY[1] AS x, {validation} AS y"
    )
    assert labels(db, validate(db, train(db, "k1"), "k2")) == [[1]]


# --- several columns, names, sources ---------------------------------------------------------------------------


def test_several_inputs_and_outputs_are_packed_row_by_row_together(db):
    db.run(
        "CREATE TABLE multi AS SELECT ARRAY[i, i] AS x1, ARRAY[[i], [-i], [i]]::float8[] AS x2, i AS y1, "
        "(i % 2)::text AS y2, ARRAY[i, 0, 7] AS y3 FROM generate_series(1, 9) i"
    )
    packed = train(db, "multi", "y1, y2 ,y3", "x1,x2", 4, 2, [10, 3, 5])
    for table in (packed, validate(db, packed, "multi", "y1,y2,y3", "x1,x2")):
        x1, x2 = unpack(db, table, "x1", "<f4"), unpack(db, table, "x2", "<f4")
        y1, y2, y3 = (np.array(labels(db, table, c)) for c in ("y1", "y2", "y3"))
        i = (x1[:, 0] * 2).astype(int)
        assert sorted(i) == list(range(1, 10)) and x2.shape == (9, 3, 1)
        assert (x2[:, 1, 0] == -i / 2).all() and (y1.argmax(1) == i - 1).all() and (y2.argmax(1) == i % 2).all()
        assert (y3[:, 0] == i).all() and y1.shape == (9, 10) and y2.shape == (9, 3) and y3.shape == (9, 3)
        row = summary(db, table)
        assert row["num_classes"] == [10, 3, 3] and row["y3_class_values"] is None
        assert row["y2_class_values"] == ["0", "1", None] and row["dependent_varname"] == ["y1", "y2", "y3"]


def test_quoted_names_with_quotes_commas_and_capitals_work(db):
    db.run('CREATE TABLE "Odd, ""T""" ("X ""1"", a" int[], "Select" text, "ümläut%%s" int)'.replace("%%", "%"))
    db.run("INSERT INTO \"Odd, \"\"T\"\"\" VALUES ('{1,2}', 'a', 1), ('{3,4}', 'b', 2)")
    packed = train(db, '"Odd, ""T"""', '"Select", "ümläut%s"', '"X ""1"", a"')
    table = validate(db, packed, '"Odd, ""T"""', 'Select, "ümläut%s"', '"X ""1"", a"')
    assert unpack(db, table, 'X "1", a', "<f4").tolist() == [[1, 2], [3, 4]]
    assert summary(db, table)["dependent_varname"] == ["Select", "ümläut%s"]
    assert labels(db, table, "ümläut%s") == [[1, 0], [0, 1]] and summary(db, table)["Select_class_values"] == ["a", "b"]


def test_source_may_be_a_view_a_temporary_a_partitioned_or_a_foreign_table(db):
    db.run(
        "CREATE TEMP TABLE temporary AS SELECT * FROM rows17; CREATE VIEW viewed AS SELECT * FROM rows17;"
        "CREATE TABLE parted (x real[], y int) PARTITION BY LIST (y); CREATE TABLE parted1 PARTITION OF parted "
        "DEFAULT; INSERT INTO parted SELECT x, y FROM rows17;"
        "CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw; CREATE FOREIGN TABLE remote "
        "(x real[], y int) SERVER files OPTIONS (program 'printf \"{1}\\t1\\n{2}\\t2\\n\"')"
    )
    for source, rows in (("temporary", 17), ("viewed", 17), ("parted", 17), ("remote", 2)):
        packed = train(db, source)
        assert len(labels(db, packed)) == rows == len(labels(db, validate(db, packed, source)))


def test_labels_of_an_extension_type_use_its_own_equality(db):
    db.run("CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext")
    db.run("CREATE TABLE cased (x int[], y ext.citext)")
    db.run("INSERT INTO cased VALUES ('{1}', 'a'), ('{2}', 'A'), ('{3}', 'b')")
    packed = train(db, "cased")
    assert labels(db, validate(db, packed, "cased")) == [[1, 0], [1, 0], [0, 1]]


# --- errors -----------------------------------------------------------------------------------------------------

CALLS = {
    "training": "SELECT madlib.training_preprocessor_dl({source}, {output}, {y}, {x}, {size}, {constant}, {classes}, "
    "{rules})",
    "validation": "SELECT madlib.validation_preprocessor_dl({source}, {output}, {y}, {x}, {training}, {size}, {rules})",
}
DEFAULTS = {
    "source": "'rows17'",
    "output": "'never'",
    "y": "'y'",
    "x": "'x'",
    "size": "NULL",
    "constant": "NULL",
    "classes": "NULL",
    "rules": "NULL",
    "training": "'good'",
}


@pytest.fixture(scope="module")
def good(db, data):
    """A packed training table that exists, with `y` and `x` of rows17."""
    db.run("RESET ALL; SET pg_mop.segments = 1")
    train(db, output="good")
    db.run("CREATE TABLE nothing_in_it (LIKE rows17); CREATE TABLE taken_summary ()")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "change, fragment",
    [
        ({"source": "NULL"}, "NULL/empty input table name"),
        ({"source": "''"}, "NULL/empty input table name"),
        ({"source": "'no_table'"}, "does not exist"),
        ({"source": "'nothing_in_it'"}, "is empty"),
        ({"output": "NULL"}, "NULL/empty output table name"),
        ({"output": "''"}, "NULL/empty output table name"),
        ({"output": "'good'"}, "already exists"),
        ({"output": "'taken'"}, "already exists"),
        ({"output": "'1st'"}, "invalid output table name"),
        ({"x": "'no_x'"}, "invalid independent_varname"),
        ({"x": "'x,no_x'"}, "invalid independent_varname"),
        ({"x": "'y'"}, "invalid independent_varname"),
        ({"x": "'x || x'"}, "invalid independent_varname"),
        ({"y": "'no_y'"}, "invalid dependent_varname"),
        ({"y": "''"}, "invalid dependent_varname"),
        ({"size": "-1"}, "buffer size must be positive or NULL"),
    ],
)
def test_bad_arguments_of_both_functions_name_the_fault(db, good, name, change, fragment):
    error = db.error(CALLS[name].format(**{**DEFAULTS, **change}))
    assert fragment in str(error) and f"{name}_preprocessor_dl: " in str(error)
    assert db.value("SELECT to_regclass('never') IS NULL AND to_regclass('never_summary') IS NULL")


@pytest.mark.parametrize(
    "change, fragment",
    [
        ({"constant": "0"}, "normalizing constant must be positive or NULL"),
        ({"constant": "'NaN'"}, "normalizing constant must be positive or NULL"),
        ({"classes": "ARRAY[13]"}, "num_classes value too small"),
        ({"classes": "ARRAY[20,20]"}, "num_classes"),
        ({"classes": "ARRAY[0]"}, "invalid num_classes"),
        ({"classes": "ARRAY[[14]]"}, "invalid num_classes"),
        ({"x": "'x,x'"}, "two columns"),
        ({"y": "'letter,y'", "classes": "ARRAY[3,5]"}, "num_classes value too small"),
    ],
)
def test_bad_arguments_of_training_name_the_fault(db, good, change, fragment):
    assert fragment in str(db.error(CALLS["training"].format(**{**DEFAULTS, **change})))


@pytest.mark.parametrize(
    "change, fragment",
    [
        ({"training": "NULL"}, "NULL/empty input table name"),
        ({"training": "'no_table'"}, "does not exist"),
        ({"training": "'nothing_in_it'"}, "is empty"),
        ({"training": "'rows17'"}, "does not exist"),
        ({"y": "'letter'"}, "subset"),
        ({"y": "'hot4'"}, "subset"),
        ({"y": "'holes'"}, "subset"),
        ({"y": "'y,letter'"}, "training has 1"),
        ({"x": "'x,x'"}, "training has 1"),
        ({"x": "'hot4'"}, "dimensions {2}"),
    ],
)
def test_bad_arguments_of_validation_name_the_fault(db, good, change, fragment):
    error = db.error(CALLS["validation"].format(**{**DEFAULTS, **change}))
    assert fragment in str(error)
    assert "no_table" not in str(error) or "training_preprocessor_dl" in error.diag.message_hint


def test_unknown_classes_are_listed_and_null_is_one(db, good):
    train(db, "rows17", "letter", output="abc")
    db.run("CREATE VIEW stranger AS SELECT x, 'z'::text AS y FROM rows17 UNION ALL SELECT x, NULL FROM rows17")
    error = db.error("SELECT madlib.validation_preprocessor_dl('stranger', 'never', 'y', 'x', 'abc')")
    assert "subset" in str(error) and error.diag.message_detail == "Training has no class NULL, z."


@pytest.mark.parametrize("column", ["x", "y"])
@pytest.mark.parametrize(
    "value, fragment",
    [
        ("'{1,2,3}'", "arrays of different dimensions"),
        ("'{{1,2}}'", "arrays of different dimensions"),
        ("NULL", "NULL"),
        ("'{1,NULL}'", "an array with a NULL element"),
        ("'{}'", "an empty array"),
    ],
)
def test_malformed_inputs_are_errors_that_name_the_column(db, column, value, fragment):
    x, y = (value if name == column else "ARRAY[1,2]" for name in "xy")
    db.run(
        "DROP VIEW IF EXISTS malformed; CREATE VIEW malformed AS SELECT ARRAY[1,2] AS x, ARRAY[1,0] AS y "
        f"UNION ALL SELECT {x}::int[], {y}::int[]"
    )
    error = str(db.error("SELECT madlib.training_preprocessor_dl('malformed', 'never', 'y', 'x')"))
    assert f'column "{column}" has {fragment}' in error


@pytest.mark.parametrize(
    "select, fragment",
    [
        ("'{a}'::text[] AS y", "cannot be ordered"),
        ("'{}'::json AS y", "cannot be ordered"),
        ("'(1,2)'::point AS y", "cannot be ordered"),
        ("random() AS y FROM generate_series(1, 40000)", "more than 32767"),
        ("random() AS y FROM generate_series(1, 3)", "gave other rows"),
        (f"1 AS {'y' * 55}", "longer than 63 bytes"),
        ("ARRAY[3e38]::real[] AS huge, 1 AS y", "out of range"),
        ("(SELECT p FROM pairs p) AS y", "cannot be ordered"),
    ],
)
def test_columns_that_cannot_be_packed_are_errors(db, select, fragment):
    db.run("DROP TABLE IF EXISTS pairs CASCADE; CREATE TABLE pairs AS SELECT 1 AS a, 2 AS b")
    db.run(f"DROP VIEW IF EXISTS unfit; CREATE VIEW unfit AS SELECT ARRAY[1] AS x, {select}")
    x, y = "huge" if "huge" in select else "x", re.search(r"AS (y+)", select)[1]
    error = db.error(f"SELECT madlib.training_preprocessor_dl('unfit', 'never', '{y}', '{x}', NULL, 0.01)")
    assert fragment in str(error)


@pytest.mark.parametrize(
    "change, call, fragment",
    [
        ("ALTER TABLE {0}_summary DROP COLUMN num_classes", "'rows17', 'never', 'y'", 'expected column "num_classes"'),
        ("UPDATE {0}_summary SET normalizing_const = -1", "'rows17', 'never', 'y'", "constant must be positive"),
        ("CREATE VIEW wide AS SELECT x, ARRAY[0,1,0] AS hot FROM rows17", "'wide', 'never', 'hot'", "subset"),
        ("CREATE TABLE clash_segment_0 ()", "'rows17', 'clash', 'y'", "already exists"),
    ],
)
def test_a_validation_table_that_cannot_follow_its_training_table_is_an_error(db, good, change, call, fragment):
    packed = train(db, "rows17", "hot4" if "wide" in change else "y")
    db.run(change.format(packed))
    assert fragment in str(db.error(f"SELECT madlib.validation_preprocessor_dl({call}, 'x', '{packed}')"))


def test_a_partition_of_the_training_table_has_a_name_that_is_taken(db):
    db.run("DROP TABLE IF EXISTS clash_segment_0; CREATE TABLE clash_segment_0 ()")
    assert "already exists" in str(db.error("SELECT madlib.training_preprocessor_dl('rows17', 'clash', 'y', 'x')"))


BEYOND = "NaN, an infinity or a number beyond type real"


@pytest.mark.parametrize(
    "x, fragment",
    [
        ("'{1,NaN}'::real[]", BEYOND),
        ("'{1,Infinity}'::float8[]", BEYOND),
        ("'{-Infinity,NaN}'::numeric[]", BEYOND),
        ("'{1e39,1}'::float8[]", BEYOND),
        ("'{1e-60,1}'::float8[]", BEYOND),
        ("ARRAY[1e400, 1]", BEYOND),
    ],
)
def test_numbers_that_are_not_finite_are_refused_with_their_count_and_a_query_that_finds_them(db, x, fragment):
    for name in ("dirty", "clean"):
        db.run(f"DROP TABLE IF EXISTS {name}, {name}_packed, {name}_packed_summary")
    db.run(
        f'CREATE TABLE dirty AS SELECT i AS id, CASE WHEN i % 50 = 7 THEN {x} ELSE ARRAY[i, 1] END AS "the x", '
        "1 AS y, i AS other FROM generate_series(1, 100) AS i"
    )
    error = db.error("""SELECT madlib.training_preprocessor_dl('dirty', 'dirty_packed', 'y', '"the x"')""")
    assert f'column "the x" has {fragment} in 2 rows' in str(error)
    one = error.diag.message_detail.split(". Numbers are packed")[0]
    assert one.removeprefix("One is ") in ("NaN", "Infinity", "-Infinity", "inf", "1e+39", "1e-60, too small for it")
    assert [r["id"] for r in db.run(error.diag.message_hint.split(";")[0])] == [7, 57]
    assert db.value("SELECT to_regclass('dirty_packed')") is None
    db.run("CREATE TABLE clean AS SELECT * FROM dirty WHERE id % 50 <> 7")
    db.run("""SELECT madlib.training_preprocessor_dl('clean', 'clean_packed', 'y', '"the x"')""")
    error = db.error("""SELECT madlib.validation_preprocessor_dl('dirty', 'v', 'y', '"the x"', 'clean_packed')""")
    assert f'column "the x" has {fragment} in 2 rows' in str(error)


@pytest.mark.parametrize(
    "y", ["'NaN'::float8", "'Infinity'::real", "1e400::numeric", "'{0.5,NaN}'::real[]", "'{1e400,0}'::numeric[]"]
)
def test_targets_that_are_not_finite_are_refused_likewise(db, y):
    kind = "ARRAY[i, 1]" if "{" in y else "i"
    db.run(
        f"DROP TABLE IF EXISTS dirty; CREATE TABLE dirty AS SELECT i AS id, ARRAY[i] AS x, CASE WHEN i = 7 THEN {y} "
        f"ELSE {kind} END AS y FROM generate_series(1, 100) AS i"
    )
    error = db.error("SELECT madlib.training_preprocessor_dl('dirty', 'never', 'y', 'x', dependent_dtype => 'float32')")
    assert f'column "y" has {BEYOND} in 1 row' in str(error)
    assert [r["id"] for r in db.run(error.diag.message_hint.split(";")[0])] == [7]


@pytest.mark.parametrize(
    "y, kind",
    [
        ("{0.3,0.7}", "real"),
        ("{0.3,0.7}", "float8"),
        ("{0.25,0.75}", "numeric"),
        ("{70000,0}", "integer"),
        ("{-32769,0}", "bigint"),
        ("{0,NaN}", "real"),
        ("{1e400,0}", "numeric"),
    ],
)
def test_label_vectors_that_int16_would_change_are_refused_with_the_argument_that_keeps_them(db, y, kind):
    db.run("DROP TABLE IF EXISTS soft, hard, hard_packed, hard_packed_summary")
    db.run(
        f"CREATE TABLE soft AS SELECT i AS id, ARRAY[i] AS x, CASE WHEN i % 30 = 7 THEN '{y}' ELSE '{{0,1}}' END"
        f"::{kind}[] AS y FROM generate_series(1, 60) AS i"
    )
    error = db.error("SELECT madlib.training_preprocessor_dl('soft', 'never', 'y', 'x')")
    assert 'column "y" has fractions, or numbers beyond -32768 to 32767, in 2 rows' in str(error)
    assert f"One has {y[:2]}" in error.diag.message_detail and len(error.diag.message_detail) < 200
    assert error.diag.message_hint.startswith("Call with dependent_dtype => 'float32'")
    query = error.diag.message_hint[error.diag.message_hint.index("SELECT") :].split(";")[0]
    assert [r["id"] for r in db.run(query)] == [7, 37]
    db.run("CREATE TABLE hard AS SELECT * FROM soft WHERE id % 30 <> 7")
    db.run("SELECT madlib.training_preprocessor_dl('hard', 'hard_packed', 'y', 'x')")
    error = db.error("SELECT madlib.validation_preprocessor_dl('soft', 'never', 'y', 'x', 'hard_packed')")
    assert "in 2 rows" in str(error) and '"hard_packed" was packed as int16' in error.diag.message_hint


def test_whole_numbers_in_vectors_of_any_type_are_kept_exactly(db):
    for kind in ("smallint", "integer", "bigint", "numeric", "real", "float8"):
        db.run(
            f"CREATE OR REPLACE TEMPORARY VIEW v_{kind} AS SELECT ARRAY[1] AS x, ARRAY[0, -32768, 32767]::{kind}[] AS y"
        )
        packed = train(db, f"v_{kind}", "y")
        assert labels(db, packed) == [[0, -32768, 32767]]


@pytest.mark.parametrize("rules", ["gpu_segments", "segments_to_use"])
def test_distribution_rules_are_ignored_with_a_notice(db, good, rules):
    db.run("DROP TABLE IF EXISTS ruled, ruled_summary, ruled_val, ruled_val_summary")
    for call in (
        "training_preprocessor_dl('rows17', 'ruled', 'y', 'x', NULL, 1, NULL, %s)",
        "validation_preprocessor_dl('rows17', 'ruled_val', 'y', 'x', 'ruled', NULL, %s)",
    ):
        db.connection.notices.clear()
        db.run("SELECT madlib." + call, [rules])
        assert any(f'NOTICE:  distribution_rules "{rules}" is ignored' in n for n in db.connection.notices)
    assert [summary(db, t)["distribution_rules"] for t in ("ruled", "ruled_val")] == ["all_segments"] * 2


def test_cancel_is_heard_and_leaves_nothing(db):
    db.run(
        "CREATE VIEW slow AS SELECT ARRAY[(pg_sleep(0.01)::text || i)::int] AS x, 1 AS y "
        "FROM generate_series(1, 3000) i"
    )
    # (the error takes the setting back)
    error = db.error(
        "SET statement_timeout = '500ms'; SELECT madlib.training_preprocessor_dl('slow', 'never', 'y', 'x')"
    )
    assert isinstance(error, psycopg2.errors.QueryCanceled) and db.value("SHOW statement_timeout") == "0"
    assert db.value("SELECT to_regclass('never') IS NULL")


# --- helpers ------------------------------------------------------------------------------------------------------


def test_convert_array_to_bytea_gives_the_bytes_of_a_buffer(db):
    assert bytes(db.value("SELECT madlib.convert_array_to_bytea(ARRAY[[1, -2.5], [0.1, 'Infinity']]::real[])")) == (
        np.array([1, -2.5, 0.1, np.inf], "<f4").tobytes()
    )
    assert bytes(db.value("SELECT madlib.convert_array_to_bytea(ARRAY[1, -2, 32767]::smallint[])")) == (
        np.array([1, -2, 32767], "<i2").tobytes()
    )
    assert bytes(db.value("SELECT madlib.convert_array_to_bytea('{}'::real[])")) == b""
    assert db.value("SELECT madlib.convert_array_to_bytea(NULL::real[])") is None
    assert "NULL element" in str(db.error("SELECT madlib.convert_array_to_bytea('{1,NULL}'::real[])"))
    assert "NULL element" in str(db.error("SELECT madlib.convert_array_to_bytea('{1,NULL}'::smallint[])"))


def test_nothing_is_dropped_as_a_packed_table_but_one(db):
    """Neither raw rows, nor a model table, nor what has a name that a summary might have."""
    db.run(
        "DROP TABLE IF EXISTS sales, sales_summary, sold, sold_summary; CREATE TABLE sales AS SELECT 1 AS id, "
        "ARRAY[1.0] AS x, 'a'::text AS y; CREATE TABLE sales_summary AS SELECT count(*) FROM sales"
    )
    error = db.error("SELECT madlib.mop_drop_packed('sales')")
    assert '"sales" is no packed table' in str(error) and "DROP TABLE" in error.diag.message_hint
    assert db.value("SELECT count(*) FROM sales") == db.value("SELECT count(*) FROM sales_summary") == 1
    db.run(
        "SELECT madlib.training_preprocessor_dl('sales', 'sold', 'y', 'x'); DROP TABLE sold_summary; "
        "CREATE TABLE sold_summary AS SELECT 1 AS one; SELECT madlib.mop_drop_packed('sold')"
    )
    assert db.run("SELECT to_regclass('sold') AS sold, one FROM sold_summary") == [{"sold": None, "one": 1}]
    db.run("DROP TABLE sales, sales_summary, sold_summary")


def test_convert_bytea_gives_flat_arrays(db):
    floats = np.array([1, -2.5, 0.1, 16777217, 3.4e38, 1e-45], "<f4")
    got = db.value("SELECT madlib.convert_bytea_to_real_array(%s)", [floats.tobytes()])
    assert np.array(got, "<f4").tobytes() == floats.tobytes()
    assert db.value("SELECT madlib.convert_bytea_to_smallint_array('\\x01000080')") == [1, -32768]
    assert "no whole number" in str(db.error("SELECT madlib.convert_bytea_to_real_array('\\x0102')"))


def test_agg_array_concat_joins_arrays_in_order(db):
    assert db.value(
        "SELECT madlib.agg_array_concat(ARRAY[i, 0.5]::real[] ORDER BY i) FROM generate_series(1, 2) i"
    ) == [1, 0.5, 2, 0.5]
    assert db.value(
        "SELECT madlib.agg_array_concat(ARRAY[i]::smallint[] ORDER BY i DESC) FROM generate_series(1, 3) i"
    ) == [3, 2, 1]


@pytest.mark.parametrize(
    "rows",
    [
        "SELECT * FROM drawn ORDER BY random() LIMIT 50",
        "SELECT * FROM drawn WHERE random() < 0.5",
        "SELECT * FROM drawn TABLESAMPLE BERNOULLI (50)",
    ],
)
def test_a_view_that_gives_other_rows_each_time_is_refused_with_a_hint_that_works(db, rows):
    db.run(
        "DROP TABLE IF EXISTS drawn, sampled_rows, stored, stored_summary CASCADE; "
        "CREATE TABLE drawn AS SELECT i AS id, ARRAY[i]::real[] AS x, i AS y FROM generate_series(1, 100) AS i"
    )
    db.run(f"CREATE VIEW sampled AS {rows}")
    error = db.error("SELECT madlib.training_preprocessor_dl('sampled', 'never', 'y', 'x')")
    assert "gave other rows when it was read again" in str(error) and "random()" in error.diag.message_detail
    db.run(error.diag.message_hint.removeprefix("Store its rows first: "))
    db.run("SELECT madlib.training_preprocessor_dl('sampled_rows', 'stored', 'y', 'x')")
    assert db.value("SELECT sum(x_shape[1]) FROM stored") == db.value("SELECT count(*) FROM sampled_rows")


def test_arrays_of_domains_and_domains_of_arrays_are_arrays(db):
    db.run(
        "CREATE DOMAIN score AS real CHECK (VALUE >= 0); "
        "CREATE DOMAIN embedding AS score[] CHECK (cardinality(VALUE) = 2)"
    )
    db.run(
        "CREATE TABLE scores AS SELECT i AS id, ARRAY[i, 2 * i]::score[] AS x, ARRAY[i, 2 * i]::embedding AS e, "
        "ARRAY[i % 2, 1 - i % 2]::score[] AS y, i % 2 AS k FROM generate_series(1, 20) AS i"
    )
    db.run("SELECT madlib.training_preprocessor_dl('scores', 'scores_packed', 'k', 'x,e', 20)")
    assert unpack(db, "scores_packed", "x", "<f4").tolist() == unpack(db, "scores_packed", "e", "<f4").tolist()
    assert sorted(unpack(db, "scores_packed", "x", "<f4").tolist()) == [[i, 2 * i] for i in range(1, 21)]
    db.run("SELECT madlib.validation_preprocessor_dl('scores', 'scores_val', 'k', 'x,e', 'scores_packed')")
    db.run("SELECT madlib.training_preprocessor_dl('scores', 'soft_scores', 'y', 'x', dependent_dtype => 'float32')")
