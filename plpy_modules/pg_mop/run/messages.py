"""INFO lines and warnings of a run while it goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pg_mop.backend.errors import MopError
from pg_mop.call import metrics
from pg_mop.call.earlier import Earlier
from pg_mop.call.spec import RunSpec

SILENT = 10  # INFO lines between two evaluations, at most
ROUNDING = 1e-4  # a part of a value by which results differ where units timed kernels
MOST_KEYS, MOST_FAILURES = 20, 5  # failed configurations that a warning names, and whose errors it shows


class Messages:
    """Tells the caller of a run. `failed()`: {mst_key: message} by now."""

    def __init__(self, spec: RunSpec, catalog: Any, run_id: int, failed: Callable[[], dict[int, str]]) -> None:
        self.spec, self.catalog, self.run_id, self.failed = spec, catalog, run_id, failed
        self.db = spec.inputs.db

    def iteration(self, iteration: int, seconds_left: float | None = None) -> None:
        """The lines of an iteration that all configurations have been through, with its metrics if it has any.

        Of iterations without metrics, at most SILENT are told of between two evaluations.
        """
        inputs, rows = self.spec.inputs, []
        if self.spec.application is not None:
            return
        evaluated = iteration in inputs.metrics_iterations
        if not evaluated and iteration % math.ceil(inputs.frequency / SILENT):
            return
        seconds = self.catalog.training_seconds(self.run_id, iteration)
        if evaluated:
            rows = self.catalog.metrics(self.run_id, iteration)
        configurations, failed = self.spec.configurations, self.failed()
        if configurations.folds:
            rows, failed = metrics.with_folds(rows, configurations), configurations.failures(failed)
        count = len(configurations.own)
        self.db.info(
            metrics.lines(iteration, inputs.num_iterations, seconds, rows, self.spec.label, count, failed, seconds_left)
        )

    def lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.db.info(line)

    def refused(self, mst_key: int, reason: str, problem: str) -> None:
        """A configuration that somebody added cannot be trained."""
        self.db.warning(f"configuration {mst_key}, {reason}, cannot be trained: {problem}")

    def not_taken(self, reason: str, error: MopError) -> None:
        """A configuration that somebody added cannot be read: the tables that it needs have changed."""
        self.db.warning(f"the configuration {reason} cannot be taken up: {error.message}")

    def late(self, reason: str) -> None:
        """A configuration was added too late."""
        self.db.warning(f"a configuration {reason} came too late to be trained: run {self.run_id} was at its end")

    def changed_code(self, followed: Earlier, code: Mapping[str, str]) -> None:
        """Warn of a replay with other custom functions or classes than the run that it repeats. `code`: {name: digest}."""
        changed = [name for name, digest in sorted(code.items()) if followed.code.get(name, digest) != digest]
        if changed:
            self.db.warning(
                f"the custom code {changed[0]!r} was changed after run {followed.run_id}, which is repeated",
                detail=f"The replay trains with the code that the object table has now. Changed: {', '.join(changed)}.",
                hint="Load the code again that the run was trained with.",
            )

    def compare(self, followed: Earlier, rows: Iterable[Any], options: Mapping[str, Any]) -> None:
        """Tell of a replay's metrics (`rows`) that differ from those of the run that it repeats. `options`: the settings."""
        found = metrics.differences(followed.metrics, rows)
        if not (found.differ or found.lacking):
            return
        rounded = options["kernel"] == "auto" or options["share_prefixes"]
        tell = self.db.notice if rounded and not found.lacking and found.largest <= ROUNDING else self.db.warning
        tell(
            f"{found.differ + found.lacking} of {found.values} losses and metrics are not those of run {followed.run_id}, by "
            f"which it was decided what to train (at most {found.largest:.2g} of a value apart)",
            detail=f"The first one is of {found.first}. Equal are results of the same kind of machine, with the same versions "
            "of Keras and its framework; with pg_mop.kernel = auto only within rounding.",
        )


def listed(failed: dict[int, str], most: int | None = None) -> str:
    """{mst_key: message} as lines of text, at most so many."""
    lines = [f"mst_key {key}: {failed[key]}" for key in sorted(failed)[:most]]
    return "\n".join(lines + ([f"and {len(failed) - most} more"] if most is not None and len(failed) > most else []))


def warn_of_failures(db: Any, failed: dict[int, str], count: int, name: str, info: str) -> None:
    """Warn that some of `count` configurations failed. `name`: how they are called; `info`: the table of the errors."""
    if not failed:
        return
    keys = ", ".join(map(str, sorted(failed)[:MOST_KEYS])) + (", ..." if len(failed) > MOST_KEYS else "")
    db.warning(
        f"{len(failed)} of {count} {name} failed: mst_key {keys}",
        detail=listed(failed, MOST_FAILURES),
        hint=f"SELECT mst_key, error FROM {info} WHERE error IS NOT NULL;",
    )
