"""A unit's SQL as text, and its coroutine run by SPI."""

import json
import math

import pytest

from pg_mop.backend.queries import Query, as_text, by_spi, rows_of


def test_values_are_literals_and_what_stands_in_quotes_is_left_alone():
    query = Query(
        'SELECT "a$1"."b""$2"($1, $2) WHERE x = \'$1 it\'\'s\' AND y = $2 AND z = $10',
        ("integer", "text", *["boolean"] * 7, "bigint[]"),
        (7, "it's \\", *[None] * 7, [1, None]),
    )
    assert as_text(query) == (
        "SELECT \"a$1\".\"b\"\"$2\"('7'::integer, E'it''s \\\\'::text) WHERE x = '$1 it''s' "
        "AND y = E'it''s \\\\'::text AND z = ARRAY['1', NULL]::bigint[]"
    )


def test_without_values_a_statement_is_as_it_is():
    assert as_text(Query("SELECT '$1', $1")) == "SELECT '$1', $1"


@pytest.mark.parametrize(
    "value, literal",
    [
        ([], "ARRAY[]::float8[]"),
        ([0.1, 1e-300], "ARRAY['0.1', '1e-300']::float8[]"),
        ([math.nan, math.inf, -math.inf], "ARRAY['nan', 'Infinity', '-Infinity']::float8[]"),
        (None, "NULL::float8[]"),
    ],
)
def test_numbers_keep_every_bit(value, literal):
    assert as_text(Query("SELECT $1", ("float8[]",), (value,))) == f"SELECT {literal}"


def test_several_rows_are_one_and_come_back():
    assert as_text(Query("SELECT * FROM f($1)", ("boolean",), (True,), several=True)) == (
        "SELECT coalesce(json_agg(s), '[]') AS several FROM (SELECT * FROM f('True'::boolean)) AS s"
    )
    rows = [{"stage": 1, "text": "a"}, {"stage": 2, "text": None}]
    assert rows_of(json.dumps({"several": rows})) == rows
    assert rows_of('{"several": []}') == [] and rows_of(None) == []
    assert rows_of('{"answer": "{\\"several\\": 1}"}') == [{"answer": '{"several": 1}'}]


class Session:
    """What by_spi asks of mop_udf.aggregate.Session."""

    def __init__(self):
        self.asked = []

    def query(self, *query):
        self.asked.append(query)
        if query[0] == "fails":
            raise ValueError("it fails")
        return [{"n": len(self.asked)}]


def test_a_coroutine_is_sent_its_rows_and_what_it_returns_comes_back():
    def steps():
        first = yield Query("a", ("integer",), (1,))
        second = yield Query("b", by_cursor=True)
        return first[0]["n"], second[0]["n"]

    session = Session()
    assert by_spi(session, steps()) == (1, 2)
    assert session.asked == [("a", ("integer",), (1,), False), ("b", (), (), True)]


def test_where_a_query_fails_the_coroutine_ends():
    ended = []

    def steps():
        try:
            yield Query("fails")
        finally:
            ended.append(True)

    with pytest.raises(ValueError, match="it fails"):
        by_spi(Session(), steps())
    assert ended == [True]


@pytest.mark.parametrize("value", [b"x", bytearray(b"x"), memoryview(b"x")])
def test_bytes_are_not_taken_for_text(value):
    for kind, values in (("bytea", value), ("bytea[]", [value])):
        with pytest.raises(TypeError, match="bytes"):
            as_text(Query("SELECT $1", (kind,), (values,)))
