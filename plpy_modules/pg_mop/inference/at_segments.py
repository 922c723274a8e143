"""Predictions on Greenplum: one statement of the caller's own session, so that it sees what he sees, also views and
tables that he has made himself.

Rows stay where they are: in each process that has some, the function mop_at_predict is given them one by one, and sends
them in chunks to a trainer of that process. They are the middle of a UNION ALL, whose parts a process goes through in
order: before them come the model, and after them, that there are no more, of the one row of mop_host_segment that is on each
segment. So the predictions are where the output table's INSERT takes them.
"""

import json
import re
import secrets

from mop_udf import aggregate
from mop_udf.errors import sqlstate_of
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import raising
from pg_mop.backend.quoting import quote_identifier
from pg_mop.backend.trainers import at_start, content
from pg_mop.inference.model import Model
from pg_mop.inference.prediction import Choice, Predictor, check_range, wires

MODEL, ROW, END = 1, 2, 3  # what a row of the UNION ALL is
PLAIN = ("smallint", "integer", "bigint", "numeric", "text", "uuid")  # types whose text no setting changes
ASTRAY = "MOP05"  # SQLSTATE: the statement is carried out otherwise than we need
INTERRUPTED = "KeyboardInterrupt"  # what Greenplum's PL/Python raises for a cancel
AGAIN = 3  # times that a statement is tried once more


def insert(db, test, model, choice, output, places, options):
    """Write the predictions for a :class:`~pg_mop.inference.raw_table.RawTable` into an Output of api/predict.py. Gives
    a MopError where the statement cannot be carried out so: nothing is written then. Raises others.

    `places`: the dist_keys of mop_host_segment, one on each segment; `options`: of the trainers there.
    """
    told = {
        "architecture": model.architecture_text,
        "model": model.told(),
        "pred_type": choice.pred_type,
        "inputs": test.inputs,
        "options": options,
    }
    identifier = quote_identifier(test.identifier)
    identifier = f"{identifier}::text" if test.id_type in PLAIN else f"{db.extension}.mop_exact_text({identifier})"
    there = f"FROM {db.extension}.mop_host_segment WHERE dist_key IN ({', '.join(map(str, places))})"
    source = (
        f"(SELECT (q.p).* FROM (SELECT {db.extension}.mop_at_predict(r.step, r.told, r.weights, r.id, r.inputs) AS p "
        f"FROM ("
        f"SELECT {MODEL} AS step, $1 AS told, ({model.weights_sql}) AS weights, NULL::text AS id, "
        f"NULL::bytea[] AS inputs {there} "
        f"UNION ALL SELECT {ROW}, NULL, NULL, {identifier}, "
        f"ARRAY[{', '.join(wires(test.inputs))}] FROM {test.table} "
        f"UNION ALL SELECT {END}, NULL, NULL, NULL, NULL {there}) AS r) AS q) AS p"
    )
    planner, problem = db.setting("optimizer"), None
    try:
        if planner != "off":  # GPORCA may order the parts otherwise
            db.execute("SET LOCAL optimizer = off")
    except db.plpy.SPIError as error:  # optimizer_control is off
        planner, problem = "off", MopError(str(error), sqlstate=ASTRAY)
    try:
        if problem is None:
            _take(db, output, source, told)
    except db.plpy.SPIError as error:
        problem = _of_segment(error)
        if problem.sqlstate[:3] not in ("MOP", "220", "530"):  # what we raise there, and bad rows
            raise
        check_range(db, error, test.table, test.inputs)
    if problem is not None and problem.sqlstate != ASTRAY:
        raise problem
    if planner != "off":
        db.execute(f"SET LOCAL optimizer = {planner}")
    return problem


def _take(db, output, source, told):
    """Have the statement carried out, which is told what there is to do (a dict).

    A segment's process may still have an interrupt to raise of a statement before, which was cancelled or failed at
    another segment: it is told to end several times, and raises one each time that it runs Python. That is not of this
    statement, which is tried again. (Where it is, the coordinator's process ends with the cancel instead.)
    """
    for left in reversed(range(AGAIN + 1)):
        try:
            output.take(source, ["text"], [json.dumps({**told, "token": secrets.token_hex(8)})])
            return
        except db.plpy.SPIError as error:
            if not left or INTERRUPTED not in str(error):
                raise


def _of_segment(error):
    """An error of SPI's that may have been raised at a segment, as the MopError that it was there."""
    _, detail, hint, _, _ = getattr(error, "spidata", None) or (None,) * 5
    message = re.sub(r"  \((seg\d+|entry db)[^()]*\)$", "", str(error).removeprefix("pg_mop: "))
    return MopError(message, detail, hint, sqlstate_of(error))


# --- in a process at a segment --------------------------------------------------------------------------


class _Predicting:
    """What the rows of one statement are given to."""

    def __init__(self, holder, text, weights):
        told = json.loads(text)
        at_start(holder.plpy, json.dumps(told["options"]), True)
        model = Model.from_told(told["model"], told["architecture"], weights)
        model.lend(holder.trainer)
        model.weights = None
        self.text, self.inputs, self.ended = text, told["inputs"], False
        self.predictor = Predictor(holder.trainer, model, Choice.for_model(told["pred_type"], model))
        self._clear()

    def _clear(self):
        self.identifiers, self.values = [], [[] for _ in self.inputs]

    def add(self, identifier, values):
        self.identifiers.append(identifier)
        for column, value in zip(self.values, values, strict=True):
            column.append(value)
        return self.predict() if len(self.identifiers) >= self.predictor.count else []

    def predict(self):
        """The predictions for the rows that have come: (id, class name, class value, probability, rank) of each."""
        if not self.identifiers:
            return []
        rows = self.predictor.of(self.identifiers, self.values, self.inputs)
        self._clear()
        return zip(*rows)


_predicting = None


def predict(plpy, step, told, weights, identifier, values):
    """mop_at_predict: what is to be done with a row of the statement; the predictions that are there then."""
    global _predicting
    holder, before, _predicting = aggregate.session(plpy), _predicting, None  # (None stays where this fails)
    with aggregate.failures_as_sql(plpy, holder):
        now, rows = raising(plpy, _step, holder, before, step, told, weights, identifier, values)
    _predicting = now
    return rows


def _step(holder, now, step, told, weights, identifier, values):
    if step == MODEL:
        if content(holder.plpy) < 0:
            raise MopError("a part of the statement is carried out by the coordinator", sqlstate=ASTRAY)
        # (several come to one process where the statement is done by one)
        return (now if now is not None and now.text == told else _Predicting(holder, told, weights)), []
    if now is None or now.ended and step == ROW:
        raise MopError("rows have come to a process that has no model", sqlstate=ASTRAY)
    if step == ROW:
        return now, now.add(identifier, values)
    now.ended = True
    return now, now.predict()
