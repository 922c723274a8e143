"""Cross-validation in training calls: the argument `folds`, and the columns of the info table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_literal
from pg_mop.call.spec import RunResult
from pg_mop.plan import folds as dealing
from pg_mop.plan.configuration import Configuration
from pg_mop.plan.folds import Summary, summarize

# columns of the info table -> what they hold of the Summary of a measure
COLUMNS = {"": "values", "_mean": "mean", "_deviation": "deviation"}
Columns = dict[str, tuple[str, Any]]


def without_folds(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, without `folds` where it has none: so they equal those of earlier versions, by which an
    unfinished run of the same call is found."""
    return {name: value for name, value in arguments.items() if name != "folds" or value is not None}


def check_folds(db: Any, folds: int, arguments: Mapping[str, Any]) -> None:
    """Check everything about `folds` that does not depend on the packed table. Raises MopError."""
    db.check_engine("folds")
    if folds < 2:
        raise MopError(
            f"folds must be at least 2, not {folds}", hint="Without the argument there is no cross-validation."
        )
    if arguments.get("validation_table") is not None:
        raise MopError(
            "folds and a validation table cannot be combined",
            detail="With folds, each configuration is evaluated on segments of the source table that it has not visited.",
            hint="Leave out folds or validation_table.",
        )
    if arguments.get("warm_start"):
        raise MopError(
            "folds and warm_start cannot be combined",
            detail="The weights of an earlier call have been trained on the segments that the folds are to hold out.",
            hint="Leave out folds or warm_start.",
        )


def held_out(inputs: Any, folds: int) -> list[list[int]]:
    """The segments (numbers) of each fold. Raises MopError if the packed table has too few segments."""
    segments = inputs.engine.segments(inputs.source)
    if len(segments) < folds:
        raise MopError(
            f'{folds} folds need as many segments, but "{inputs.source.text}" has {len(segments)}',
            detail="A fold holds out whole segments.",
            hint=packs_into(inputs, folds),
        )
    return dealing.deal((s.key for s in segments), folds)


def fold_trials(rows: list[Configuration], inputs: Any, folds: int) -> list[Configuration]:
    """The trials of the folds of configurations (`rows`). Raises MopError as `held_out`."""
    segments = held_out(inputs, folds)
    try:
        return dealing.trials(rows, segments) if rows else []
    except OverflowError as error:
        raise MopError(str(error), sqlstate="22003") from None


def packs_into(inputs: Any, segments: int) -> str:
    """The statements that pack a table's rows into so many segments."""
    db, source, summary = inputs.db, inputs.source, inputs.source.summary
    begin, output = f"SET pg_mop.segments = {segments};", f"{source.text}_{segments}"
    if "__transform__" in summary or not summary.get("source_table"):
        of = quote_literal(summary.get("source_table") or "source")
        return f"{begin} and call mop_pack({of}, {quote_literal(output)}, ...) with the arguments of the first call."
    arguments = [summary["source_table"], output, ",".join(source.outputs), ",".join(source.inputs)]
    constant = summary.get("normalizing_const")
    constant = f", normalizing_const => {constant:g}" if constant not in (None, 1) else ""
    return (
        f"{begin} SELECT {db.extension}.training_preprocessor_dl({', '.join(map(quote_literal, arguments))}{constant});"
    )


class FoldsOfRun:
    """The folds of a run that has ended, for its output tables."""

    def __init__(self, result: RunResult) -> None:
        self.result, self.folds = result, result.configurations.folds
        self._rows = {(row["mst_key"], row["iteration"]): row for row in result.metrics if row["dataset"] == "training"}
        self._failures = result.configurations.failures(result.failed)

    @classmethod
    def of(cls, result: RunResult) -> FoldsOfRun | None:
        """The folds of a run; None if it has none."""
        return cls(result) if result.configurations.folds else None

    def own(self, outcomes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The outcomes of the caller's configurations. One has failed if any of its trials has."""
        configurations = self.result.configurations
        return [
            {**c, "error": self._failures.get(c["mst_key"], c["error"])}
            for c in outcomes
            if configurations[c["mst_key"]].get("fold") is None
        ]

    def add_columns(self, info: str) -> None:
        """Add the columns of folds to an info table (quoted)."""
        columns = self._columns("loss", None) | self._columns("metrics", None)
        definitions = (f"ADD COLUMN {name} {kind}" for name, (kind, _) in columns.items())
        self.result.db.execute(f"ALTER TABLE {info} {', '.join(definitions)}")

    def columns(self, mst_key: int, iteration: int | None) -> Columns:
        """The columns of folds of a configuration whose model is that of `iteration` (None: it has no model)."""
        _, *keys = self.result.configurations.trials_of(mst_key)
        rows = [self._rows.get((key, iteration)) if iteration is not None else None for key in keys]
        if not any(rows):
            return {}
        measures = {
            "loss": summarize(row and row["loss"] for row in rows),
            "metrics": summarize(row and row["metric"] for row in rows),
        }
        return self._columns("loss", measures["loss"]) | self._columns("metrics", measures["metrics"])

    @staticmethod
    def _columns(measure: str, summary: Summary | None) -> Columns:
        return {
            f"folds_{measure}{suffix}": (
                "float8" if suffix else "float8[]",
                None if summary is None else getattr(summary, name),
            )
            for suffix, name in COLUMNS.items()
        }
