"""The plan of mop_train and mop_retrain: their steps are made on a sample of the rows, in the caller's own session, and
rolled back with the explanation. The search, which is the last step, is planned as any explained search is."""

from __future__ import annotations

import math
import secrets
import time
from typing import TYPE_CHECKING, Any

from pg_mop.api.tables import time_shares
from pg_mop.api.tables.baselines import MOST_ROWS, START
from pg_mop.api.tables.time_shares import TimeShares
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, error_of, is_cancel, step_message
from pg_mop.backend.explaining import Explained
from pg_mop.backend.quoting import quote_identifier
from pg_mop.packing.row_source import is_query

if TYPE_CHECKING:
    from pg_mop.api.tables.train import Training

SAMPLED = 50_000  # rows that are packed for the plan; a table with fewer training rows is packed as a whole
POSITIONS = 1 << 20  # of hashes of rows, which draw the sample
# seconds of simple models and of measuring, on a processor of the year 2024: a guess
PER_CELL, PER_ROW = 2.5e-7, 1e-5  # to train on an element of a row; to read, encode and measure a row
TREES = 0.25  # of gradient boosting for each class, whatever the rows are
SPREAD = (0.5, 2.0)  # seconds of what is guessed, as multiples
NOT_PREDICTED = (
    "how good the model will be, and which net and parameters the search will choose",
    "whether a trial ends early because its results are bad",
    "values that cannot be packed, in rows outside the sample",
    "whether other sessions see the table",
)


class StepsHere:
    """The statements of a call's steps in the calling session itself, with the interface of run.steps.Steps."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def run(self, sql: str, quiet: bool = False) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows. Raises MopError. (`quiet` is as it is: its messages are few.)"""
        db = self.db
        db.check_cancel()
        try:
            with db.caller_path():
                result = db.plpy.execute(sql)
            return [tuple(row.values()) for row in result] if result.nrows() and len(result) else []
        except db.plpy.SPIError as error:
            if is_cancel(error):
                raise
            problem = error_of(error, step_message(str(error)))
        raise problem

    def finish(self, sql: str) -> None:
        """Nothing: the explanation takes everything back."""


def refuse_query(db: Database, source: str | None) -> None:
    """Raises MopError where the rows come from a query: explaining a call runs nothing that is written in the call."""
    if is_query(source):
        raise MopError(
            "a call whose source is a query cannot be explained",
            detail="The plan needs a sample of the rows, and the query would have to run.",
            hint=f"CREATE VIEW training_rows AS {str(source).strip().rstrip(';')}; and name the view as source.",
            sqlstate="0A000",
        )


def explain(training: Training, names: dict[str, str], version: int) -> None:
    """Make the plan of a training whose arguments are checked. Raises Explained, and MopError where the call would fail.

    `names`: of the steps' relations, and `version`, as Training.run has them.
    """
    db = training.db
    explaining = db.explaining
    assert explaining is not None
    seconds: dict[str, float] = {}
    steps: Any = StepsHere(db)
    training.times = TimeShares(training.seconds, training.timed_steps, lambda: sum(seconds.values()))
    with explaining.steps():
        began = time.monotonic()
        training.begin(steps)
        training.split_rows(steps, names)
        seconds["split"] = time.monotonic() - began
        training.drawn = training.most_rows(steps, names, training.times.begin(time_shares.PREPARE) + seconds["split"])
        parts, packed = {**training.parts, **training.drawn}, names
        factor, sampled = 1.0, None
        if parts["train"] > SAMPLED:
            packed = {**names, "train": _sample(db, names["train"], training.parts["train"])}
            if "valid" in parts:  # a rare class or category may be missing in the sample: these rows have what it has
                packed["valid"] = packed["train"]
            sampled = db.value(f"SELECT count(*) FROM {packed['train']}")
            factor = sum(parts[part] for part in ("train", "valid") if part in parts) / (
                sampled * (1 + ("valid" in parts))
            )
            explaining.rows = {"training": parts["train"]}
            if "valid" in parts:
                explaining.rows["validation"] = parts["valid"]
        began = time.monotonic()
        training.pack_parts(steps, packed)
        seconds["pack"] = factor * (time.monotonic() - began)
        kind = training.kind(steps, names)
        seconds["nets"] = seconds["boosting"] = 0.0
        reasons = training.without_others(names)
        has_search = training.has_nets and not training.has_perceptrons_alone(reasons)
        if training.has_nets and not has_search:
            training.times.leave_out(time_shares.NETS, time_shares.OTHERS)
        if has_search:
            began = time.monotonic()
            training.make_nets(steps, names)
            seconds["nets"] = time.monotonic() - began
        if not all(reasons.values()):
            seconds["boosting"] = training.times.begin(time_shares.OTHERS)
        plan: dict[str, Any] = {"nets": []}
        if has_search:
            training.search_nets(steps, names, kind)
            plan = explaining.made
        width = _width(db, training, names)
        classes = _classes(plan, kind)
    seconds["measure"] = after(
        parts["train"], parts.get("test", 0), width, classes, training.arguments.baselines is not False
    )
    explaining.made = {
        "function": "mop_train" if version == 1 else "mop_retrain",
        **_plan(training, plan, parts, kind, seconds, sampled),
    }
    raise Explained


def after(train: int, test: int, width: int, classes: int, baselines: bool) -> float:
    """Seconds from the search's end to the call's end: the winner is measured on the test rows, and simple models are trained
    on at most MOST_ROWS rows of `width` elements. `classes`: 1 for numbers.

    >>> after(1000, 200, 10, 2, False) < after(1000, 200, 10, 2, True) < after(100_000, 200, 10, 2, True)
    True
    """
    seconds_of_measures = PER_ROW * test
    if not baselines:
        return seconds_of_measures
    rows = min(train, MOST_ROWS)
    trees = classes if classes > 2 else 1
    return seconds_of_measures + START + trees * (TREES + PER_CELL * rows * width) + PER_ROW * (rows + test)


def _sample(db: Database, view: str, rows: int) -> str:
    """A temporary view of about SAMPLED rows of a view, always the same ones; returns its name."""
    name = f"pg_temp.{quote_identifier(f'mop_rows_{secrets.token_hex(6)}')}"
    most = math.ceil(POSITIONS * SAMPLED / rows)
    source = db.input_table(view, "table of a step", rows=False)
    db.execute(
        f"CREATE TEMPORARY VIEW {name.removeprefix('pg_temp.')} AS SELECT * FROM {source} t "
        f"WHERE (hashtext(t::text) & {POSITIONS - 1}) < {most}"
    )
    return name


def _width(db: Database, training: Training, names: dict[str, str]) -> int:
    """The elements of a packed row."""
    packed_table = db.input_table(names["packed"], "table of a step", rows=False)
    shapes = [
        name for name in db.columns(packed_table) if name.endswith("_shape") and name != f"{training.target}_shape"
    ]
    row = db.one(f"SELECT {', '.join(map(quote_identifier, shapes))} FROM {packed_table} LIMIT 1") if shapes else None
    return sum(math.prod(shape[1:]) for shape in row.values()) if row else 1


def _classes(plan: dict[str, Any], kind: str) -> int:
    """How many classes the target has, by the shape of a row ('28 x 28 -> 10')."""
    shapes = [net["shape"] for net in plan["nets"] if net["shape"]]
    last = shapes[0].rpartition("-> ")[2] if shapes else ""
    return int(last) if kind == "classification" and last.isdigit() else 1


def _plan(
    training: Training,
    plan: dict[str, Any],
    parts: dict[str, int],
    kind: str,
    seconds: dict[str, float],
    sampled: int | None,
) -> dict[str, Any]:
    """The plan of the search as one of the whole call."""
    low = expected = high = 0.0  # seconds of the search, if there is any
    if (search := plan.get("search")) is not None:
        of_low, of_high = search["range"]
        low, expected = search["least"]["seconds"] * of_low, search["expected"]["seconds"]
        high = search["most"]["seconds"] * of_high
        if search["time_limit"] is not None:
            high = min(high, max(search["most"]["seconds"], search["time_limit"]))
    prepare = seconds["split"] + seconds["pack"] + seconds["nets"] + seconds["boosting"]
    # what was measured on a sample and what is guessed may take half or twice as long
    rough = seconds["measure"] + (seconds["pack"] if sampled is not None else 0.0)
    sure = prepare + seconds["measure"] - rough
    return {
        **{name: value for name, value in plan.items() if name != "function"},
        "output_table": training.name,
        "train": {
            "name": training.name,
            "source": training.source,
            "target": training.target,
            "kind": kind,
            "rows": training.rows,
            "parts": parts,
            "sampled_rows": sampled,
            "steps": seconds,
            "seconds": prepare + expected + seconds["measure"],
            "seconds_low": sure + SPREAD[0] * rough + low,
            "seconds_high": sure + SPREAD[1] * rough + high,
            "time_limit": training.seconds,
            "baselines": training.arguments.baselines is not False,
            "not_predicted": list(NOT_PREDICTED),
        },
    }
