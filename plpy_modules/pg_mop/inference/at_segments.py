"""Predictions on Greenplum: one statement of the caller's own session, which sees the caller's views and uncommitted tables.

Rows stay on their segments. In each process on a segment, the function mop_at_predict receives the rows one by one, and
sends them in chunks to a trainer of that process. A UNION ALL brings the model before the rows, and a mark of their end
after the rows: a process goes through the parts in order, and mop_host_segment has one row on each segment. So the predictions
are on the segments where the INSERT into the output table takes them.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from mop_udf import aggregate
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, error_of, without_classes
from pg_mop.backend.functions import raising
from pg_mop.backend.quoting import quote_identifier
from pg_mop.backend.trainers import at_start, content
from pg_mop.inference.model import Model
from pg_mop.inference.prediction import Choice, Predictor, check_range
from pg_mop.inference.raw_table import RawTable

MODEL, ROW, END = 1, 2, 3  # the parts of the UNION ALL
PLAIN = ("smallint", "integer", "bigint", "numeric", "text", "uuid")  # types whose text no setting changes
WRONG_PLAN = "MOP05"  # SQLSTATE: the plan of the statement does not bring the parts in order to the segments
INTERRUPTED = "KeyboardInterrupt"  # Greenplum's PL/Python raises it for a cancel
RETRIES = 3  # of a statement


class Output(Protocol):
    """The table of the predictions (api/madlib/predict.py)."""

    def take(self, source: str, types: Sequence[str], values: Sequence[Any]) -> None:
        """Insert the rows of a relation (SQL, with parameters of these types)."""


def insert(
    db: Database,
    test: RawTable,
    model: Model,
    choice: Choice,
    output: Output,
    places: Iterable[int],
    options: dict[str, Any],
) -> MopError | None:
    """Write the predictions for a test table into an output table.

    Returns a MopError where the statement cannot run on the segments: then nothing is written. Raises other errors.
    `places`: the values of mop_host_segment, one on each segment; `options`: of the trainers on the segments.
    """
    if model.source.reference is not None:
        return MopError(f"the weights of {model.what} are in parts", sqlstate=WRONG_PLAN)
    request = {
        "architecture": model.architecture_text,
        "model": model.to_json(),
        "pred_type": choice.pred_type,
        "inputs": test.inputs,
        "options": options,
    }
    identifier = quote_identifier(test.identifier)
    identifier = f"{identifier}::text" if test.id_type in PLAIN else f"{db.extension}.mop_exact_text({identifier})"
    on_each = f"FROM {db.extension}.mop_host_segment WHERE dist_key IN ({', '.join(map(str, places))})"
    source = (
        f"(SELECT (q.p).* FROM (SELECT {db.extension}.mop_at_predict(r.step, r.told, r.weights, r.id, r.inputs) AS p "
        f"FROM ("
        f"SELECT {MODEL} AS step, $1 AS told, ({model.source.sql}) AS weights, NULL::text AS id, "
        f"NULL::bytea[] AS inputs {on_each} "
        f"UNION ALL SELECT {ROW}, NULL, NULL, {identifier}, "
        f"ARRAY[{', '.join(model.wires_sql(test.inputs))}] FROM {test.table} "
        f"UNION ALL SELECT {END}, NULL, NULL, NULL, NULL {on_each}) AS r) AS q) AS p"
    )
    planner = db.setting("optimizer")
    problem: MopError | None = None
    try:
        if planner != "off":  # GPORCA may order the parts otherwise
            db.execute("SET LOCAL optimizer = off")
    except db.plpy.SPIError as error:  # optimizer_control is off
        planner, problem = "off", MopError(str(error), sqlstate=WRONG_PLAN)
    try:
        if problem is None:
            _take(db, output, source, request)
    except db.plpy.SPIError as error:
        problem = _of_segment(error)
        if problem.sqlstate[:3] not in ("MOP", "220", "530"):  # errors of _Predicting, and bad rows
            raise
        check_range(db, error, test.table, test.inputs)
    if problem is not None and problem.sqlstate != WRONG_PLAN:
        raise problem
    if planner != "off":
        db.execute(f"SET LOCAL optimizer = {planner}")
    return problem


def _take(db: Database, output: Output, source: str, request: dict[str, Any]) -> None:
    """Run the statement, with the `request` for the segments' processes.

    A segment's process may still hold interrupts of an earlier statement, which was canceled or failed at another
    segment: it received several signals, and raises one interrupt each time that it runs Python. Such an interrupt does not
    concern this statement, so the statement is tried again. A cancel of this statement ends the coordinator's process.
    """
    for retries_left in reversed(range(RETRIES + 1)):
        try:
            output.take(source, ["text"], [json.dumps({**request, "token": secrets.token_hex(8)})])
            return
        except db.plpy.SPIError as error:
            if not retries_left or INTERRUPTED not in str(error):
                raise


def _of_segment(error: Any) -> MopError:
    """The MopError that a segment raised, from the SPI error that arrives at the coordinator."""
    return error_of(error, re.sub(r"  \((seg\d+|entry db)[^()]*\)$", "", without_classes(str(error))))


# --- in a process at a segment --------------------------------------------------------------------------


class _Predicting:
    """The model and the pending rows of one statement, in a process on a segment."""

    def __init__(self, holder: aggregate.Session, text: str, weights: bytes) -> None:
        request = json.loads(text)
        at_start(holder.plpy, json.dumps(request["options"]), True)
        model = Model.from_json(request["model"], request["architecture"], weights)
        model.lend(holder.running())
        model.weights = None
        self.text, self.inputs, self.ended = text, request["inputs"], False
        self.predictor = Predictor(holder.running(), model, Choice.for_model(request["pred_type"], model))
        self._clear()

    def _clear(self) -> None:
        self.identifiers: list[str] = []
        self.values: list[list[Any]] = [[] for _ in self.inputs]

    def add(self, identifier: str, values: list[Any]) -> Iterable[Any]:
        self.identifiers.append(identifier)
        for column, value in zip(self.values, values, strict=True):
            column.append(value)
        return self.predict() if len(self.identifiers) >= self.predictor.count else []

    def predict(self) -> Iterable[Any]:
        """The predictions for the pending rows: (id, class name, class value, probability, rank) of each."""
        if not self.identifiers:
            return []
        rows = self.predictor.of(self.identifiers, self.values, self.inputs)
        self._clear()
        return zip(*rows)


_predicting: _Predicting | None = None


def predict(
    plpy: Any, step: int, request: str | None, weights: bytes | None, identifier: str | None, values: list[Any] | None
) -> Iterable[Any]:
    """mop_at_predict: take one row of the statement; returns the predictions that are complete with it."""
    global _predicting
    holder, before, _predicting = aggregate.session(plpy), _predicting, None  # None stays where this fails
    with aggregate.failures_as_sql(plpy, holder):
        now, rows = raising(plpy, _step, holder, before, step, request, weights, identifier, values)
    _predicting = now
    return rows


def _step(
    holder: aggregate.Session,
    now: _Predicting | None,
    step: int,
    request: str | None,
    weights: bytes | None,
    identifier: str | None,
    values: list[Any] | None,
) -> tuple[_Predicting, Iterable[Any]]:
    """The state and the complete predictions after one row of the statement: the model, a row to predict for, or the end."""
    if step == MODEL:
        assert request is not None and weights is not None
        if content(holder.plpy) < 0:
            raise MopError("a part of the statement is carried out by the coordinator", sqlstate=WRONG_PLAN)
        # where one process does the whole statement, the model arrives several times
        return (now if now is not None and now.text == request else _Predicting(holder, request, weights)), []
    if now is None or now.ended and step == ROW:
        raise MopError("rows have come to a process that has no model", sqlstate=WRONG_PLAN)
    if step == ROW:
        assert identifier is not None and values is not None
        return now, now.add(identifier, values)
    now.ended = True
    return now, now.predict()
