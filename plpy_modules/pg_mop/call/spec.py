"""A call as a value: the run spec, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pg_mop.call import metrics
from pg_mop.call.configurations import Configuration, Configurations
from pg_mop.call.earlier import Earlier
from pg_mop.call.inputs import Inputs
from pg_mop.call.unit_specs import UnitSpecs
from pg_mop.catalog import metric_of
from pg_mop.search.base import Procedure


def _label(mst_key: int) -> str:
    return f"mst_key={mst_key}: "


def _all_failed(failed: dict[int, str]) -> str:
    return f"all {len(failed)} configurations failed"


def _nothing(*_: Any) -> Sequence[Any]:
    return ()


@dataclass(frozen=True)
class Output:
    """Where the result of a call goes.

    `name`: as the caller writes it; `table`: the same, quoted and with its schema: no other call may write to it;
    `write(result)`: makes the output tables, in the caller's transaction; `previous`: the tables that a warm start
    replaces (api.output.Previous), or None.
    """

    name: str
    table: str
    write: Callable[[RunResult], None]
    previous: Any = None


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search procedure decides which configurations are trained, and how long.

    `procedure(seed, segments, trials)`: makes it, with other `trials` than its parameters say unless None; in a replay,
    LoggedTrials in its place (search/logged.py); `metric`, `dataset`, `goal`: its criterion; `seconds`: after this time
    nothing more is begun; `most_trials`: at most; `known`: results of an earlier run, [(configuration, {iteration: value}),
    ...]; `stops_within_budget`: it may stop a trial before the
    iterations that it asked for;
    `differs(earlier, options)`: why a call is not that of an earlier run, or None; `also_evaluated(procedure, mst_key)`:
    iterations whose metrics are wanted besides; `lines(procedure, proposals)`: INFO lines about new proposals;
    `best_line(mst_key, row, trials)`: the INFO line about a new best trial; `held_out`: the segments of each fold, where the
    criterion is the mean over folds; `score_members(procedure, configuration, state, segments)`: [[model_id, score, what the
    log tells of it], ...] of the candidates of a super-net, of a one-shot search; `segments`: of the search's dataset.
    """

    procedure: Callable[..., Any]
    metric: str
    dataset: str
    goal: str
    differs: Callable[[Any, dict[str, Any]], str | None]
    best_line: Callable[[int, dict[str, Any], int], str]
    seconds: float | None = None
    most_trials: int | None = None
    known: Sequence[Any] = ()
    stops_within_budget: bool = False
    also_evaluated: Callable[[Procedure, int], Iterable[int]] = _nothing
    lines: Callable[[Procedure, Sequence[Any]], Iterable[str]] = _nothing
    held_out: Sequence[Sequence[int]] = ()
    score_members: Callable[[Procedure, Configuration, Any, Sequence[Any]], list[list[Any]]] | None = None

    def value(self, row: dict[str, Any]) -> float | None:
        """The metric that the search judges by, of a row of Catalog.metrics."""
        return metric_of(row, self.metric)


@dataclass(frozen=True)
class Application:
    """The call applies a trained model (evaluate, predict): it trains nothing and leaves no run behind.

    `unit_specs`: the class that describes its units; `parts`: finds the parts of a raw table, in place of a packed
    table's segments; `needs_copies`: False if copies of segments are a help on which nothing depends; `gather(servers,
    segments)`: reads the results that units wrote on their servers, before these are dropped; may be None.
    """

    unit_specs: Callable[..., UnitSpecs]
    parts: Callable[[], Sequence[Any]] | None = None
    needs_copies: bool = True
    gather: Callable[[Any, Any], None] | None = None


@dataclass(frozen=True)
class RunSpec:
    """A call, checked: everything that planner and coordinator need.

    `function`: the SQL function; `arguments`: its arguments, by name; `tables`: names of tables, and facts that are not
    among the arguments, for the run's row in the catalog; `averaging`: one model is trained on all segments at once and
    averaged; `preferred`: the run whose states are taken over if several have them; `trained_on`: an Earlier, whose rows the
    packed tables must still have; `listed_iterations`: iterations whose metrics the output lists, None: all;
    `all_failed(failed)`: begins the error if nothing could be trained;
    `label(mst_key)`: begins a configuration's INFO line.
    """

    function: str
    inputs: Inputs
    configurations: Configurations
    output: Output
    arguments: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)
    averaging: bool = False
    search: Search | None = None
    application: Application | None = None
    preferred: int | None = None
    trained_on: Earlier | None = None
    listed_iterations: Sequence[int] | None = None
    all_failed: Callable[[dict[int, str]], str] = _all_failed
    label: Callable[[int], str] = _label

    def may_end_early(self, c: Configuration) -> bool:
        """True if the state that is written may not be the last one on the configuration's path."""
        return "rule" in c or self.search is not None and self.search.stops_within_budget


class RunResult:
    """The result of a run, for the writers of its output tables.

    `catalog`: open, until the output is written; `failed`: {mst_key: message}; `metrics`: rows of Catalog.metrics;
    `kept`: {mst_key: iteration of the state that is kept as its best}; `started`: when, as text; `segments`: how many each
    iteration visits, unless a fold leaves some out; `replicas`: of averaging, the rows of each replica's segment;
    `procedure`: of a search, or LoggedTrials of a replay (search/logged.py); `winner`: the best configuration
    (api.winner.Winner), once the output is written; None if no configuration has a result.
    """

    def __init__(
        self, spec: RunSpec, catalog: Any, run_id: int, started: str, failed: dict[int, str], kept: dict[int, int]
    ) -> None:
        self.spec, self.catalog, self.run_id, self.started = spec, catalog, run_id, started
        self.db, self.source = spec.inputs.db, spec.inputs.source
        self.configurations, self.outputs = spec.configurations, spec.configurations.outputs
        self.failed, self.kept = failed, kept
        self.metrics = catalog.metrics(run_id)
        self.segments = 1
        self.replicas: list[int] = []
        self.procedure: Any = None
        self.winner: Any = None
        self._rows: dict[int, list[dict[str, Any]]] | None = None

    def outcome(self) -> list[dict[str, Any]]:
        """The outcome of each configuration (rows of Catalog.outcome)."""
        return self.catalog.outcome(self.run_id, self.kept)

    def states(self, outcomes: Sequence[dict[str, Any]]) -> Iterator[Any]:
        """The model states of configurations' outcomes, one after the other."""
        return self.catalog.states(self.run_id, outcomes)

    def metric_columns(self, mst_key: int, absent: Any, written: int | None = None) -> dict[str, tuple[str, Any]]:
        """The metrics of a configuration as {column: (SQL type, value)}, see run.metrics.columns."""
        if self._rows is None:
            self._rows = {}
            for row in self.metrics:
                self._rows.setdefault(row["mst_key"], []).append(row)
        validated = self.spec.inputs.validation is not None
        return metrics.columns(self._rows.get(mst_key, []), validated, absent, written, self.spec.listed_iterations)
