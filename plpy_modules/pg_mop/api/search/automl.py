"""madlib_keras_automl and hyperband_schedule, as MADlib has them (docs/contract/automl.md), on the engine of mop_search."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Mapping
from typing import Any

from pg_mop import search
from pg_mop.api.common.output import model_tables, write_models_summary
from pg_mop.api.common.winner import Winner, winner
from pg_mop.api.madlib import architectures
from pg_mop.api.madlib.fit_multiple import write_models
from pg_mop.api.search.search import Method, SearchCall, errors_of_search
from pg_mop.api.search.search_models import Architectures
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.call import metrics
from pg_mop.call.earlier import Earlier
from pg_mop.call.spec import Output, RunResult
from pg_mop.search import SearchError, hyperband
from pg_mop.search.ranking import LOSS
from pg_mop.search.space import Space

FUNCTION = "madlib_keras_automl"
ARGUMENTS = (
    "source_table",
    "model_output_table",
    "model_arch_table",
    "model_selection_table",
    "model_id_list",
    "compile_params_grid",
    "fit_params_grid",
    "automl_method",
    "automl_params",
    "random_state",
    "object_table",
    "use_gpus",
    "validation_table",
    "metrics_compute_frequency",
    "name",
    "description",
    "use_caching",
)
# method -> (its parameters with their defaults, the procedure)
METHODS: dict[str, tuple[dict[str, Any], str]] = {
    "hyperband": ({"R": 6, "eta": 3, "skip_last": 0}, "madlib-hyperband"),
    "hyperopt": ({"num_configs": 20, "num_iterations": 5, "algorithm": "tpe"}, "madlib-hyperopt"),
}
ALGORITHMS = {"tpe": "tpe", "rand": "random"}


@sql_function
def madlib_keras_automl(db: Database, *values: Any) -> None:
    """Search by hyperband or hyperopt (docs/contract/automl.md). Arguments as in SQL; returns nothing.

    `use_caching` changes nothing: rows are always kept in the trainers while they fit pg_mop.cache_mb.
    """
    train(db, dict(zip(ARGUMENTS, values)))


def train(db: Database, arguments: dict[str, Any], earlier: Earlier | None = None) -> None:
    """Search with the arguments of madlib_keras_automl (a dict); `earlier`: the run that mop_resume goes on with, or
    mop_replay repeats (:class:`~pg_mop.call.earlier.Earlier`)."""
    a = arguments
    with errors_of_search():
        method = MadlibMethod(a)
        call = SearchCall(db, FUNCTION, {**a, "metric": "loss"}, method.method(), method.read_space, earlier)
        method.check_frequency()
    model, info, summary = model_tables(db, a["model_output_table"], "_info", "_summary")
    selection, selection_summary = db.output_table(a["model_selection_table"], "_summary")
    if selection in (model, info, summary) or selection_summary in (model, info, summary):
        raise MopError(
            "model_output_table and model_selection_table must have different names",
            detail=f"Both would be made as {selection}.",
        )

    def write(result: RunResult) -> None:
        write_models(result, model, info, None)
        write_rounds(result, method, info)
        result.winner = winner(db, info, LOSS)
        write_best(db, call, selection, selection_summary, info, result.winner, a)
        write_models_summary(
            result,
            summary,
            a,
            [
                ("model_selection_table", "text", a["model_selection_table"]),
                ("automl_method", "text", a["automl_method"] or "hyperband"),
                ("automl_params", "text", a["automl_params"] or method.described()),
                ("random_state", "text", a["random_state"]),
                ("object_table", "text", call.object_table),
                ("use_gpus", "boolean", bool(a["use_gpus"])),
                ("metrics_compute_frequency", "integer", method.last_frequency(result.procedure)),
            ],
            [("best_mst_key", "integer", result.winner and result.winner.mst_key)],
            ended="timestamp(0)",
        )

    call.execute(a, Output(a["model_output_table"], model, write), info)


class MadlibMethod:
    """One of MADlib's two methods: hyperband or hyperopt, with its parameters (`values`)."""

    def __init__(self, a: Mapping[str, Any]) -> None:
        """Raises MopError and SearchError."""
        self.frequency = a["metrics_compute_frequency"]
        method = (a["automl_method"] or "hyperband").strip().lower()
        if method not in METHODS:
            raise MopError(f"automl_method must be 'hyperband' or 'hyperopt', not {a['automl_method']!r}")
        defaults, self.name = METHODS[method]
        parameters = search.read_parameters(a["automl_params"])
        if method == "hyperopt":
            parameters = {name.lower(): value for name, value in parameters.items()}
        for name in parameters:
            if name not in defaults:
                raise MopError(f"{name!r} is not accepted in automl_params of {method} ({', '.join(defaults)})")
        self.values = {**defaults, **parameters}
        for name, value in self.values.items():
            if name == "algorithm":
                if str(value).lower() not in ALGORITHMS:
                    raise MopError(f"algorithm must be 'rand' or 'tpe', not {value!r}")
            elif not isinstance(value, int) or isinstance(value, bool) or value < (0 if name == "skip_last" else 1):
                raise MopError(
                    f"{name} must be an integer {'of at least 0' if name == 'skip_last' else 'above 0'}, not {value!r}"
                )
        if self.hyperband:
            check_hyperband(self.values["R"], self.values["eta"], self.values["skip_last"])

    @property
    def hyperband(self) -> bool:
        return self.name == "madlib-hyperband"

    def method(self) -> Method:
        """The Method of the search."""
        values = self.values
        if self.hyperband:
            parameters = {"iterations": values["R"], "reduction": values["eta"], "skip_last": values["skip_last"]}
        else:
            parameters = {
                "trials": values["num_configs"],
                "iterations": values["num_iterations"],
                "sampler": ALGORITHMS[str(values["algorithm"]).lower()],
            }
        return Method(
            self.name,
            parameters,
            self.also_evaluated,
            self.lines,
            self.best_line,
            for_segments=not self.hyperband,
            keep="last",
        )

    def check_frequency(self) -> None:
        """Raises MopError."""
        if self.frequency is not None and not self.hyperband:
            most = self.values["num_iterations"]
            if not 1 <= self.frequency <= most:
                raise MopError(
                    f"metrics_compute_frequency must be from 1 to num_iterations ({most}) or NULL, not {self.frequency}"
                )

    def read_space(self, a: Mapping[str, Any], available: Architectures) -> Space:
        """The Space of MADlib's grids. `available`: Architectures. Raises MopError."""
        architectures.check_list(a["model_id_list"])
        available.check_ids(a["model_id_list"])
        space = Space.of_texts(sorted(set(a["model_id_list"])), a["compile_params_grid"], a["fit_params_grid"])
        if not self.hyperband and space.branches[0].optimizer is None:
            raise MopError("hyperopt needs optimizer_params_list in compile_params_grid")
        dimensions = itertools.chain.from_iterable(branch.dimensions for branch in space.branches)
        for dimension in dimensions if not self.hyperband else ():
            if dimension.kind == "log_near_one":
                raise MopError(
                    f"'log_near_one' of {dimension.key!r} is not for hyperopt",
                    hint="Write 'linear' or 'log', or search with mop_search.",
                )
        return space

    # --- rounds and metrics -----------------------------------------------------------------------
    def described(self) -> str:
        """The parameters in force, as text."""
        return ", ".join(f"{name}={value}" for name, value in self.values.items())

    def rounds(self, procedure: Any, key: int) -> list[tuple[int, int, int]]:
        """Of a trial: [(first iteration, last iteration, first of MADlib's counter), ...] by round; a person's has
        one."""
        trial = procedure.trials[key]
        if trial.outside:
            return [(1, trial.budget, 1)]
        if not self.hyperband:
            return [(1, self.values["num_iterations"], 1)]
        s, _ = procedure.place(key)
        return self.brackets[s]

    @functools.cached_property
    def brackets(self) -> dict[int, list[tuple[int, int, int]]]:
        """Of hyperband: {s: the rounds of its trials}, as of `rounds`."""
        rows = hyperband.schedule(self.values["R"], self.values["eta"], self.values["skip_last"], True)
        lengths = {(s, i): r for s, i, _, r in rows}
        highest = max(s for s, _ in lengths)
        # diagonal d trains for as many iterations as the first round of bracket highest - d
        begins = [0]
        for d in range(highest + 1):
            begins.append(begins[-1] + lengths.get((highest - d, 0), 0))
        rounds_of: dict[int, list[tuple[int, int, int]]] = {}
        for (s, i), r in lengths.items():
            rounds = rounds_of.setdefault(s, [])
            iterations = rounds[-1][1] if rounds else 0
            rounds.append((iterations + 1, iterations + r, begins[highest - s + i] + 1))
        return rounds_of

    def also_evaluated(self, procedure: Any, key: int) -> list[int]:
        """By metrics_compute_frequency where that lies within a round, else at its end alone."""
        every = self.frequency
        return [
            i
            for first, last, _ in self.rounds(procedure, key)
            for i in range(first, last + 1)
            if i == last or every is not None and every <= last - first + 1 and (i - first + 1) % every == 0
        ]

    def last_frequency(self, procedure: Any) -> Any:
        """What counted in the last call of fit_multiple that MADlib would have made."""
        first, last, _ = self.rounds(procedure, max(k for k, t in procedure.trials.items() if not t.outside))[-1]
        every = self.frequency
        return every if every is not None and every <= last - first + 1 else last - first + 1

    def lines(self, procedure: Any, proposals: Any) -> Any:
        """INFO lines about new proposals: of hyperband each round that begins, of hyperopt how many are new."""
        if not self.hyperband:
            new = sum(p.configuration is not None for p in proposals)
            return [f"{new} new configurations"] if new else []
        begun = collections.Counter(
            (procedure.place(p.trial)[0], p.budget) for p in proposals if not procedure.trials[p.trial].outside
        )
        lines = []
        for (s, budget), count in sorted(begun.items(), reverse=True):
            i, (first, last, _) = next((i, r) for i, r in enumerate(self.brackets[s]) if r[1] == budget)
            lines.append(f"bracket s={s}, round i={i}: {count} configurations, {last - first + 1} iterations")
        return lines

    @staticmethod
    def best_line(mst_key: int, row: dict[str, Any], trials: int) -> str:
        """The INFO line about a new best trial; `row`: its metrics, of Catalog.metrics."""
        return f"best {row['dataset']} loss so far: mst_key={mst_key}: {metrics.described(row)}"


def write_rounds(result: RunResult, method: MadlibMethod, info: str) -> None:
    """Add MADlib's columns of automl to the info table (quoted)."""
    db, procedure, banded = result.db, result.procedure, method.hyperband
    db.execute(
        f"ALTER TABLE {info} ADD COLUMN metrics_iters integer[]"
        + (", ADD COLUMN s integer, ADD COLUMN i integer" if banded else "")
    )
    evaluated: dict[int, list[int]] = {}
    for row in result.metrics:
        if row["dataset"] == "training":
            evaluated.setdefault(row["mst_key"], []).append(row["iteration"])
    for key, trial in procedure.trials.items():
        rounds = method.rounds(procedure, key)
        iterations_of_madlib = [
            begin + i - first for i in evaluated.get(key, ()) for first, last, begin in rounds if first <= i <= last
        ]
        s, i = procedure.place(key) if banded and not trial.outside else (None, None)
        db.execute(
            f"UPDATE {info} SET metrics_iters = $1" + (", s = $3, i = $4" if banded else "") + " WHERE mst_key = $2",
            ["integer[]", "integer"] + ["integer"] * 2 * banded,
            [iterations_of_madlib, key] + [s, i] * banded,
        )


def write_best(
    db: Database, call: SearchCall, selection: str, summary: str, info: str, best: Winner | None, a: Mapping[str, Any]
) -> None:
    """Write the selection table: the best configuration alone. `best`: a Winner by the final loss, or None."""
    db.execute(
        f"CREATE TABLE {selection} (mst_key integer, model_id integer, compile_params varchar, fit_params varchar)"
    )
    db.identify_by_all(selection)
    db.execute(
        f"INSERT INTO {selection} SELECT mst_key, model_id, compile_params, fit_params FROM {info} WHERE mst_key = $1",
        ["integer"],
        [best and best.mst_key],
    )
    db.execute(f"CREATE TABLE {summary} (model_arch_table varchar, object_table varchar)")
    db.identify_by_all(summary)
    db.execute(f"INSERT INTO {summary} VALUES ($1, $2)", ["text", "text"], [a["model_arch_table"], call.object_table])


def check_hyperband(most: int | None, eta: int | None, skip_last: int | None) -> None:
    """Raises MopError where these make no schedule."""
    if most is None or eta is None or eta <= 1:
        raise MopError(f"eta must be greater than 1, not {eta}")
    if most < eta:
        raise MopError(f"R ({most}) must be at least eta ({eta})")
    if skip_last is None or skip_last < 0:
        raise MopError(f"skip_last must be at least 0, not {skip_last}")
    try:
        hyperband.schedule(most, eta, skip_last, True)
    except (ValueError, SearchError) as error:
        raise MopError(str(error)) from None


@sql_function
def hyperband_schedule(
    db: Database, schedule_table: str | None, r: int | None, eta: int | None, skip_last: int | None
) -> None:
    """Write MADlib's schedule of hyperband (docs/contract/automl.md, section 3) to a new table."""
    check_hyperband(r, eta, skip_last)
    assert r is not None and eta is not None and skip_last is not None
    table = db.output_table(schedule_table)
    db.execute(f"CREATE TABLE {table} (s integer, i integer, n_i integer, r_i integer, UNIQUE (s, i))")
    db.identify_by_all(table)
    for row in hyperband.schedule(r, eta, skip_last, True):
        db.execute(f"INSERT INTO {table} VALUES ($1, $2, $3, $4)", ["integer"] * 4, list(row))
