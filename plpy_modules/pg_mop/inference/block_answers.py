"""Answers for a large table, a range of its blocks at a time, by PostgreSQL's own parallel workers.

One statement, CREATE TABLE AS, reads a plain table, asks a net that a backend computes, and writes. Its workers have the
caller's snapshot, rights, settings and locks, and see what the caller's transaction has written; a cancel ends them; without
a free worker, the caller's process does all. Sessions of our own would have none of that.

The values of a range travel as arrays, one for each column: rows would cost PostgreSQL and Python twice as much. Workers find
the model in a file in the memory of the caller's process. So no SQL contains the model, which a role may ask and not read. A
setting says where the file is, and its key: other sessions see a statement's text (pg_stat_activity), and no setting.
"""

from __future__ import annotations

import ctypes
import fcntl
import hmac
import json
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError, error_of, is_cancel, without_classes
from pg_mop.backend.functions import raising
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.inference.named_model import NamedModel, RowReader, answer_arrays
from pg_mop.inference.row_inputs import CHUNK_BYTES

WORTH_ROWS = 40_000  # that one process answers in half a second; a worker starts in 0.3 s
FIRST_VERSION = 140000  # of PostgreSQL that reads a range of blocks
MOST_PARTS = 64  # partitions and children: each range of blocks is planned for all of them
LEAST_ROWS = 10  # of a block, where statistics tell of fewer: they may be old, and this bounds the blocks of a range
USUAL_ROWS = 100  # of a block, where there are no statistics
# The ranges are dealt into so many parts, of which a worker takes the next. For n parts PostgreSQL plans at most log2(n) + 1
# workers. The process that writes takes 1 us a row, and a worker about 10: it could feed no more.
DEALT = 64
LAST_BLOCK = (1 << 32) - 1
FILE = "pg_mop model"
# so that the planner counts neither the start of workers, which WORTH_ROWS counts, nor the rows that they send
SETTINGS = {
    "parallel_setup_cost": "0",
    "parallel_tuple_cost": "0",
    "parallel_leader_participation": "off",  # it would keep all workers waiting while it computes
    "enable_parallel_append": "on",
    "enable_tidscan": "on",
    "jit": "off",
}
MODEL = "mop_answers.model"  # a setting: 'process ID, descriptor, key'; no name of pg_mop.*: those are checked
WORKERS = "max_parallel_workers_per_gather"
WORKER_ENDED = ("57P01", "55000")  # an administrator has ended a worker; it was lost, or has not found the model

Output = tuple[str, str, str]  # a column of the new table: its quoted name, its type, the SQL of its values: an array


@dataclass(frozen=True)
class Blocks:
    """How a table is read. `count`: of its blocks, the largest count of its parts; `at_a_time`: the blocks of a range;
    `is_built_in`: reading runs no functions of users (`_are_built_in`); `in_workers`: False where only the caller's process may
    read the table."""

    count: int
    at_a_time: int
    is_built_in: bool
    in_workers: bool

    @classmethod
    def of(cls, db: Database, reader: RowReader, model: NamedModel, kept: Sequence[str]) -> Blocks | None:
        """How the table that a reader reads is read by ranges of blocks, with the kept columns; None where it is not: it is a
        view or a query, small, distributed, or has row security; or the model's values are no numbers and texts."""
        table = reader.origin
        if (
            not isinstance(table, Table)
            or table.kind not in ("r", "p", "m")
            or model.numbers_and_texts() is None
            or int(db.setting("server_version_num") or 0) < FIRST_VERSION
            or db.setting("transaction_isolation") == "serializable"  # its locks on rows expect other scans
            or db.has_foreign_rows(table)
        ):
            return None
        (row,) = db.execute(
            "WITH RECURSIVE tree(part) AS (SELECT $1::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree t "
            "ON i.inhparent = t.part), parts AS (SELECT c.relpersistence = 't' AS is_temporary, "
            "c.relkind = 'p' OR m.amhandler = 'heap_tableam_handler'::regproc AS is_heap, pg_table_size(c.oid) AS bytes, "
            "pg_relation_size(c.oid) / current_setting('block_size')::integer AS blocks, "
            "CASE WHEN c.reltuples > 0 AND c.relpages > 0 THEN c.reltuples / c.relpages ELSE $2 END AS block_rows "
            "FROM tree t JOIN pg_class c ON c.oid = t.part LEFT JOIN pg_am m ON m.oid = c.relam) "
            "SELECT row_security_active($1) AS has_policies, count(*) AS parts, bool_and(is_heap) AS is_heap, "
            "bool_or(is_temporary) AS is_temporary, max(blocks) AS blocks, sum(bytes)::float8 AS bytes, "
            "sum(blocks * block_rows)::float8 AS rows FROM parts",
            ["oid", "integer"],
            [table.oid, USUAL_ROWS],
        )
        if row["has_policies"] or row["parts"] > MOST_PARTS or not row["is_heap"] or row["rows"] < WORTH_ROWS:
            return None
        count = row["blocks"]
        at_a_time = max(
            1, int(min(model.chunk_rows / max(LEAST_ROWS, row["rows"] / count), CHUNK_BYTES / (row["bytes"] / count)))
        )
        is_built_in = _are_built_in(db, table, reader, kept)
        return cls(count, at_a_time, is_built_in, is_built_in and not row["is_temporary"])

    def query(self, schema: str, sql: str, outputs: Sequence[Output]) -> str:
        """SQL: the rows of `sql`, which has a range of blocks as its parameters, for all ranges. `schema`: the extension's."""
        columns = ", ".join(f"{name} {sql_type}" for name, sql_type, _ in outputs)
        parts = min(DEALT, -(-self.count // self.at_a_time))
        # the last range ends with the table: rows may have come since its blocks were counted
        after = (
            f"CASE WHEN r.first OPERATOR(pg_catalog.>=) '{self.count - self.at_a_time}'::bigint THEN '{LAST_BLOCK}'::bigint "
            f"ELSE r.first OPERATOR(pg_catalog.+) '{self.at_a_time}'::bigint END"
        )
        return " UNION ALL ".join(
            f"SELECT x.* FROM pg_catalog.generate_series('{part * self.at_a_time}'::bigint, '{self.count - 1}'::bigint, "
            f"'{parts * self.at_a_time}'::bigint) AS r(first), "
            f"{schema}.mop_answer_blocks({quote_literal(sql)}::text, r.first, {after}) AS x({columns})"
            for part in range(parts)
        )


def _is_array(reader: RowReader, column: str) -> bool:
    """Whether a kept column is cast to text and back: array_agg adds a dimension to arrays, for equal ones alone."""
    return reader.columns[column].endswith(("[]", "vector"))


def _are_built_in(db: Database, table: Table, reader: RowReader, kept: Sequence[str]) -> bool:
    """Whether the columns that are cast have types that are built in, or enums: a cast from another may run functions that no
    worker may run, and a kept array is cast back to its type, whose domain may have a check."""
    return not db.value(
        "SELECT EXISTS (SELECT 1 FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = "
        "t.typbasetype WHERE a.attrelid = $1 AND (a.attname = ANY ($2) AND coalesce(b.typtype, t.typtype) <> 'e' "
        "AND coalesce(b.typnamespace, t.typnamespace) <> 'pg_catalog'::regnamespace "
        "OR a.attname = ANY ($3) AND t.typnamespace <> 'pg_catalog'::regnamespace))",
        ["oid", "text[]", "text[]"],
        [table.oid, list(reader.types), [name for name in kept if _is_array(reader, name)]],
    )


def write(
    db: Database, model: NamedModel, reader: RowReader, blocks: Blocks, table: str, kept: Sequence[str]
) -> tuple[int, dict[str, list[str]]]:
    """Create a table (quoted) of the kept columns and the answers. Returns the count of rows, and as `unseen` the values that
    training rows did not have."""
    wires = model.numbers_and_texts()
    assert wires is not None
    extra: list[str] = []
    outputs: list[Output] = []
    for number, column in enumerate(kept):
        name, sql_type = quote_identifier(column), reader.exact_types[column]
        is_array = _is_array(reader, column)
        extra.append(f"{name}::text" if is_array else name)
        outputs.append((name, sql_type, f"pg_catalog.unnest(k{number})" + (f"::{sql_type}" if is_array else "")))
    for number, (name, sql_type) in enumerate(model.answer_columns, 1):
        outputs.append((name, sql_type, f"pg_catalog.unnest((a)[{number}]::{sql_type}[])"))
    arrays = [f"pg_catalog.array_agg(__mop_e{i}) AS k{i}" for i in range(len(extra))]
    numbers, texts = (
        f"ARRAY[{', '.join(f'pg_catalog.array_agg({sql})' for sql in own)}]" if own else "NULL" for own in wires
    )
    where = "WHERE t.ctid OPERATOR(pg_catalog.>=) $1 AND t.ctid OPERATOR(pg_catalog.<) $2"
    with _handed_over(db, model) as handed:
        arrays.append(
            f"{db.extension}.mop_answer_arrays(pg_catalog.current_setting('{MODEL}'), {numbers}::double precision[], "
            f"{texts}::text[]) AS a"
        )
        sql = (
            f"SELECT {', '.join(value for _, _, value in outputs)} FROM (SELECT {', '.join(arrays)} "
            f"FROM {reader.values_sql(extra, where)} HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 0) r"
        )
        names = ", ".join(name for name, _, _ in outputs)
        statement = f"CREATE TABLE {table} ({names}) AS {blocks.query(db.extension, sql, outputs)}"
        with db.local_settings({MODEL: f"{os.getpid()} {handed.file} {handed.key}"}):
            return _written(db, statement, blocks, blocks.in_workers), handed.reported()


def _written(db: Database, statement: str, blocks: Blocks, in_workers: bool) -> int:
    """Run the statement that creates the table. Returns the count of rows. Raises MopError."""
    # functions of users look names up by the caller's path; nothing else may find another role's function there
    path = nullcontext() if blocks.is_built_in else db.caller_path()
    try:
        with db.local_settings(SETTINGS if in_workers else {**SETTINGS, WORKERS: "0"}), path:
            db.check_cancel()
            return int(db.plpy.execute(statement).nrows())
    except db.plpy.SPIError as error:
        if is_cancel(error):
            raise
        if not (in_workers and error.sqlstate in WORKER_ENDED):
            if without_classes(str(error)) != str(error):  # raised in Python
                raise error_of(error) from None
            raise
        problem = str(error)
    db.log(f"mop_predict_into works without parallel workers: {problem}")
    return _written(db, statement, blocks, False)


# --- the model, in the memory of the caller's process ---------------------------------------------------------------------
_LAYOUT = struct.Struct("<32sIQ")  # the key, and the lengths of the JSON and the weights that follow; then reports


@dataclass
class _Handed:
    """A model that is handed over. `file`: a descriptor, to which each process appends the values of a column that training
    rows did not have, once; `end`: where they begin."""

    key: str
    model: NamedModel
    file: int
    end: int
    told: set[str] = field(default_factory=set)

    def answers(self, numbers: Sequence[Any] | None, texts: Sequence[Any] | None) -> list[str | None]:
        model, unseen = self.model, dict[str, list[str]]()
        assert model.own_net is not None
        arrays = model.encode_values(model.own_net, model.values_of_arrays(numbers, texts), unseen)
        answers = answer_arrays(model, model.outputs_of(model.own_net, arrays))
        if not unseen.keys() <= self.told:
            os.write(self.file, json.dumps(unseen).encode() + b"\n")
            self.told |= unseen.keys()
        return answers

    def reported(self) -> dict[str, list[str]]:
        """The values that all processes have appended."""
        reports = os.pread(self.file, os.fstat(self.file).st_size - self.end, self.end)
        found: dict[str, list[str]] = {}
        for line in reports.splitlines():
            for name, values in json.loads(line).items():
                found.setdefault(name, values)
        return found


_handed: dict[str, _Handed] = {}  # by key: that this process answers with, in a worker until it ends


@contextmanager
def _handed_over(db: Database, model: NamedModel) -> Iterator[_Handed]:
    """In this block, this process and its workers answer with a model."""
    key, (architecture, weights) = secrets.token_hex(16), model.whole(db)
    about = json.dumps({**model.to_json(), "architecture": architecture}).encode()
    file = os.memfd_create(FILE)
    try:
        with open(file, "wb", closefd=False) as writer:
            writer.write(_LAYOUT.pack(key.encode(), len(about), len(weights)) + about)
            writer.write(weights)
            end = writer.tell()
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
        _handed[key] = _Handed(key, model, file, end)
        yield _handed[key]
    finally:
        _handed.pop(key, None)
        os.close(file)


def mop_answer_arrays(
    plpy: Any, place: str | None, numbers: list[Any] | None, texts: list[Any] | None
) -> list[str | None]:
    """The answers for rows of which each column is an array. `place`: of the model, as in the setting."""
    return raising(plpy, _answer_arrays, place or "", numbers, texts)


def _answer_arrays(place: str, numbers: list[Any] | None, texts: list[Any] | None) -> list[str | None]:
    pid, file, key = [*place.split(" "), "", ""][:3]
    handed = _handed.get(key)
    if handed is None:
        handed = _received(pid, file, key)
        if handed is None:
            raise MopError("no model is handed over with this key", sqlstate=WORKER_ENDED[1])
        _handed[handed.key] = handed
    return handed.answers(numbers, texts)


def _is_worker() -> bool:
    return ctypes.c_int.in_dll(ctypes.CDLL(None), "ParallelWorkerNumber").value >= 0


def _received(pid: str, file_number: str, key: str) -> _Handed | None:
    """The model in a file of another process; None where there is none with this key, and in a process that is no worker: it
    would have the model when the role may ask it no more."""
    if not (_is_worker() and pid.isdecimal() and file_number.isdecimal()):
        return None
    path = f"/proc/{pid}/fd/{file_number}"
    try:
        if not os.readlink(path).startswith(f"/memfd:{FILE}"):  # (to open another file may have effects)
            return None
        file = os.open(path, os.O_RDWR | os.O_APPEND)
    except OSError:  # the statement has ended
        return None
    with open(file, "rb", closefd=False) as reader:
        found, about, weights = _LAYOUT.unpack(reader.read(_LAYOUT.size))
        if not hmac.compare_digest(found, key.encode()):
            os.close(file)
            return None
        data = json.loads(reader.read(about))
        model = NamedModel.from_json(data, data["architecture"], reader.read(weights))
    return _Handed(key, model, file, _LAYOUT.size + about + weights)
