"""mop_search: a procedure proposes configurations, extends and stops them by what comes of them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from mop_udf.params import params
from pg_mop import search
from pg_mop.api.common.output import insert, model_tables, write_models_summary
from pg_mop.api.common.winner import JudgedBy, Winner, best_of
from pg_mop.api.madlib.class_weights import ClassWeights
from pg_mop.api.madlib.fit_multiple import write_models
from pg_mop.api.search import one_shot
from pg_mop.api.search.folds import FoldsOfRun, check_folds, held_out, without_folds
from pg_mop.api.search.search_models import Models, object_table_of, open_models
from pg_mop.backend import object_table
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.call import metrics
from pg_mop.call.configurations import Configurations, is_super_net
from pg_mop.call.earlier import Earlier, open_catalog, own_run
from pg_mop.call.inputs import Inputs
from pg_mop.call.metrics import HELD_OUT
from pg_mop.call.spec import Output, RunResult, RunSpec, Search
from pg_mop.catalog import metric_of
from pg_mop.plan.folds import MOST_IN_SEARCH
from pg_mop.run.coordinator import execute
from pg_mop.run.messages import warn_of_failures
from pg_mop.search import grids
from pg_mop.search.base import Procedure
from pg_mop.search.fixed_budget import FixedBudget
from pg_mop.search.logged import LoggedTrials
from pg_mop.search.one_shot import OneShot
from pg_mop.search.space import Space

FUNCTION = "mop_search"
ARGUMENTS = (
    "source_table",
    "model_output_table",
    "model_arch_table",
    "space",
    "procedure",
    "procedure_params",
    "metric",
    "validation_table",
    "time_limit",
    "max_trials",
    "continue_from",
    "random_state",
    "use_gpus",
    "object_table",
    "name",
    "description",
    "folds",
    "model_space",
)
LOOKED_AT = 50  # configurations of a space that are checked before anything is trained
TABLES = ("model_arch_table", "object_table", "architectures")  # of the run's row in the catalog


@sql_function
def mop_search(db: Database, *values: Any) -> None:
    """Search a space of configurations (docs/search.md). Arguments as in SQL; returns nothing."""
    train(db, dict(zip(ARGUMENTS, values)))


def train(db: Database, arguments: dict[str, Any], earlier: Earlier | None = None) -> None:
    """Search with the arguments of mop_search (a dict); `earlier`: the run that mop_resume goes on with, or mop_replay
    repeats (:class:`~pg_mop.call.earlier.Earlier`)."""
    a = without_folds(arguments)
    with errors_of_search():
        call = SearchCall(db, FUNCTION, a, Method.read(a), read_space, earlier)
    one_shots = ("_one_shot",) if call.is_one_shot else ()  # the table of the scores by shared weights
    model, info, summary, trials, *scored = model_tables(
        db, a["model_output_table"], "_info", "_summary", "_trials", *one_shots
    )

    def write(result: RunResult) -> None:
        write_models(result, model, info, None)
        result.winner = write_trials(result, trials, (call.metric, call.dataset, call.goal))
        for table in scored:
            one_shot.write_scores(result, table, f"{call.dataset}_{call.metric}", call.goal)
        write_models_summary(
            result,
            summary,
            a,
            [
                ("space", "text", a["space"]),
                ("procedure", "text", result.procedure.name),
                ("procedure_params", "text", a["procedure_params"]),
                ("metric", "text", f"{HELD_OUT if call.folds else call.dataset}_{call.metric}"),
                ("best_mst_key", "integer", result.winner and result.winner.mst_key),
                ("object_table", "text", call.object_table),
                ("num_iterations", "integer", call.inputs.num_iterations),
                *([("folds", "integer", call.folds)] if call.folds else []),
                *([("model_space", "text", a["model_space"])] if a.get("model_space") is not None else []),
            ],
        )
        db.identify_by_all(summary)  # mop_more writes its best

    call.execute(a, Output(a["model_output_table"], model, write), info)


def write_trials(result: RunResult, table: str, judged_by: JudgedBy) -> Winner | None:
    """Write the status of each trial, and its metric after each iteration that was evaluated; `judged_by`: (metric, dataset,
    goal).

    The columns `iterations` and `metric_final` describe the state that the model table holds; of a trial that failed,
    `iterations` are its whole ones. Returns the Winner by these states, or None.
    """
    db, (metric, dataset, goal) = result.db, judged_by
    db.execute(
        f"CREATE TABLE {table} (mst_key integer PRIMARY KEY, model_id integer, compile_params text, "
        f"fit_params text, status text, iterations integer, metric_iters integer[], metric float8[], "
        f"metric_best float8, metric_final float8, reason text)"
    )
    values: dict[int, list[tuple[int, float | None]]] = {}
    losses: dict[tuple[int, int], float | None] = {}
    finals: list[tuple[int, float | None, float | None]] = []
    rows, outcome, folded = result.metrics, result.outcome(), FoldsOfRun.of(result)
    if folded is not None:
        rows, outcome, dataset = metrics.with_folds(rows, result.configurations), folded.own(outcome), HELD_OUT
    for row in rows:
        if row["dataset"] == dataset:
            values.setdefault(row["mst_key"], []).append((row["iteration"], metric_of(row, metric)))
            losses[row["mst_key"], row["iteration"]] = row["loss"]
    better = min if goal == "min" else max
    traced = any(c["member"] for c in outcome)
    if traced:
        db.execute(
            f"ALTER TABLE {table} ADD COLUMN base_model integer, ADD COLUMN member numeric, ADD COLUMN choices jsonb, "
            "ADD COLUMN parent integer, ADD COLUMN changed text"
        )
    for c in outcome:
        key, history = c["mst_key"], values.get(c["mst_key"], [])
        final = dict(history).get(c["iteration"])
        if c["error"] is None and final is not None and not is_super_net(c):
            finals.append((key, final, losses[key, c["iteration"]]))
        status = "failed" if c["error"] else "stopped" if c["reason"] else "finished"
        if is_super_net(c) and status == "finished":
            status = "super-net"
        insert(
            db,
            table,
            {
                "mst_key": ("integer", key),
                "model_id": ("integer", c["model_id"]),
                "compile_params": ("text", c["compile_params"]),
                "fit_params": ("text", c["fit_params"]),
                "status": ("text", status),
                "iterations": (
                    "integer",
                    (c["version"] or 0) // result.segments if c["error"] else c["iteration"] or 0,
                ),
                "metric_iters": ("integer[]", [i for i, _ in history]),
                "metric": ("float8[]", [v for _, v in history]),
                "metric_best": ("float8", better((v for _, v in history if v is not None), default=None)),
                "metric_final": ("float8", final),
                "reason": ("text", c["error"] or c["reason"]),
                **(_traced(c["member"] or {}) if traced else {}),
            },
        )
    return best_of(finals, (metric, goal), dataset)


def _traced(member: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Columns about a trial's model and origin; `member`: as the catalog has it."""
    number = member.get("member")
    return {
        "base_model": ("integer", member.get("base")),
        "member": ("numeric", None if number is None else Decimal(number)),
        "choices": ("jsonb", None if "choices" not in member else json.dumps(member["choices"])),
        "parent": ("integer", member.get("parent")),
        "changed": ("text", member.get("changed")),
    }


def _nothing(*_: Any) -> tuple[()]:
    return ()


@dataclasses.dataclass
class Method:
    """How a search proposes configurations: the procedure's name and parameters.

    `also_evaluated`, `lines`, `best_line`: as of run.spec.Search; `for_segments`: the procedure works on as many trials
    at once as there are segments; `keep`: the state of a trial that is written, 'best' or 'last', unless its parameters
    say so.
    """

    name: str
    parameters: dict[str, Any]
    also_evaluated: Callable[..., Sequence[int]] = _nothing
    lines: Callable[..., Iterable[str]] = _nothing
    best_line: Callable[..., str] | None = None
    for_segments: bool = False
    keep: str = "best"

    @classmethod
    def read(cls, a: Mapping[str, Any]) -> Method:
        """Of the arguments of mop_search. Raises SearchError."""
        name, parameters = a["procedure"] or "asha", search.read_parameters(a["procedure_params"])
        if search.find(name).name in search.MADLIB:
            raise search.SearchError(
                f"{name!r} is a procedure of madlib_keras_automl alone",
                "Call madlib_keras_automl, or choose one of "
                + ", ".join((*search.PROCEDURES, *search.OF_MODELS))
                + ".",
            )
        if a.get("max_trials") is not None and "trials" in search.find(name).PARAMETERS:
            parameters.setdefault("trials", a["max_trials"])
        return cls(name, parameters)

    def create(
        self, space: Space, seed: int, goal: str, segments: int | None = None, trials: int | None = None
    ) -> Procedure:
        """The procedure, with so many trials unless None. Raises SearchError."""
        parameters = self.parameters if trials is None else {**self.parameters, "trials": trials}
        procedure = search.create(self.name, space, seed, goal, parameters)
        if self.for_segments and segments and isinstance(procedure, FixedBudget):
            procedure.parallel = segments
        return procedure


def read_space(a: Mapping[str, Any], available: Models) -> Space:
    """The Space of mop_search's argument: one or several dictionaries of model_id, and keys of compile and fit
    parameters, each with a list of choices or a distribution. `available`: Architectures, or Members. Raises MopError."""
    keys_of_models = ("model_id",) if available.models is None else ()
    several = grids.parse_several(a["space"], "space", (*keys_of_models, *grids.COMPILE_KEYS, *grids.FIT_KEYS))
    for number, grid in enumerate(several, 1):
        if available.models is None:
            grid.setdefault("model_id", list(available.rows))
            available.check_ids(grid["model_id"])
        if "loss" not in grid:
            raise MopError(
                "the space has no 'loss'"
                if len(several) == 1
                else f"the space has no 'loss' in its dictionary {number}",
                hint="For instance: space => $$ {'loss': ['categorical_crossentropy'], 'metrics': "
                "[['accuracy']], 'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.0001, "
                "0.1, 'log']}], 'batch_size': [16, 32]} $$",
            )
    return Space(*several, models=available.models)


class SearchCall:
    """A call that searches: its arguments, checked as far as possible before anything is trained."""

    def __init__(
        self,
        db: Database,
        function: str,
        arguments: dict[str, Any],
        method: Method,
        read_space: Callable[[Mapping[str, Any], Any], Space],
        earlier: Earlier | None = None,
    ) -> None:
        """`method`: a Method; `read_space(arguments, models)`: the Space. Raises MopError, SearchError and
        GridError."""
        a = arguments
        self.db, self.function, self.method, self.earlier = db, function, method, earlier
        self.followed = earlier.followed if earlier is not None else None
        limit = a.get("time_limit")
        self.seconds = (
            None if limit is None else float(db.value("SELECT extract(epoch FROM $1::interval)", ["text"], [limit]))
        )
        if self.seconds is not None and not self.seconds > 0:
            raise MopError(f"time_limit must be above 0, not {limit}", hint="For instance: time_limit => '1 hour'.")
        if a.get("max_trials") is not None and a["max_trials"] < 1:
            raise MopError(f"max_trials must be at least 1, not {a['max_trials']}")
        self.most_trials, self.random_state = a.get("max_trials"), a["random_state"]
        self.continues = a.get("continue_from") or 0
        self.folds, self.held_out = a.get("folds"), []
        if self.folds is not None:
            check_folds(db, self.folds, a)
            if self.continues:
                raise MopError(
                    "folds and continue_from cannot be combined",
                    detail="The results of the earlier run are not means over these folds.",
                    hint="Leave out folds or continue_from.",
                )
            if self.folds > MOST_IN_SEARCH:
                raise MopError(f"folds must be at most {MOST_IN_SEARCH} in a search, not {self.folds}")
        self.object_table = a["object_table"]
        self.is_one_shot = search.find(method.name) is OneShot
        self._check_one_shot()
        make = None
        if self.followed is not None:  # its log has the proposals
            most = self.followed.num_iterations
            self.tables = {name: self.followed.tables.get(name) for name in TABLES}
            self.object_table = (
                self.object_table or self.tables["object_table"]
            )  # that of a model space is in the log alone
        else:
            self.architectures = open_models(db, a, earlier)
            self.object_table = object_table_of(db, a["object_table"], self.architectures)
            self.space = read_space(a, self.architectures)
            most = method.create(self.space, 0, "min").most  # checks it, too: made again once the seed is known
            make = self.architectures.configuration
            values = self.architectures.text, self.object_table, self.architectures.digests()
            self.tables = dict(zip(TABLES, values))
        self.inputs = Inputs.read(
            db, a["source_table"], a["validation_table"], most, None, a["use_gpus"], earlier
        ).replace(metrics_iterations=[])
        if self.folds is not None:
            self.held_out = held_out(self.inputs, self.folds)
        functions = None if self.object_table is None else object_table.check(db, self.object_table)
        self.metric, self.dataset, self.goal = self.inputs.read_metric(a["metric"] or "loss")
        self.known = []
        if a.get("continue_from") is not None and earlier is None:  # a search that is resumed has it in its log
            self.known = self._known(a["continue_from"])
        options = self.inputs.options
        if options["seed"] is None:
            options["seed"] = secrets.randbits(31)
        self.configurations = Configurations(
            self.inputs,
            ClassWeights(self.inputs.source, self.inputs.engine),
            judged_by=(self.metric, self.dataset, self.goal),
            required_metric=self.metric,
            searches=True,
            keep=method.keep if self.folds is None else "last",
            folds=self.folds,
            make=make,
        )
        self.configurations.check([], functions)
        if self.followed is None:
            self._check_population()
            self._check_space()

    def _check_one_shot(self) -> None:
        """Raises MopError where a one-shot search has arguments that it cannot use."""
        for name, why in (
            ("folds", "a super-net is trained on all segments"),
            ("continue_from", "scores by shared weights are not results of trials"),
        ):
            value = self.folds if name == "folds" else self.continues or None
            if self.is_one_shot and value is not None:
                raise MopError(
                    f"one-shot and {name} cannot be combined",
                    detail=why[0].upper() + why[1:] + ".",
                    hint=f"Leave out {name}.",
                )

    def _check_population(self) -> None:
        """Raises MopError where copies of trials cannot share stages."""
        options = self.inputs.options
        if search.find(self.method.name).name == "population" and not (options["sharing"] and options["same_start"]):
            raise MopError(
                "population-based training copies stages of other trials, which "
                "pg_mop.sharing = off and pg_mop.same_start = off forbid",
                hint="RESET pg_mop.sharing; RESET pg_mop.same_start;",
            )

    def procedure(self, seed: int, segments: int | None = None, trials: int | None = None) -> Any:
        """The procedure of a run with this seed; of a replay, what the log tells of its trials. `trials`: how many, if not as
        its parameters say."""
        if self.followed is not None:
            return LoggedTrials(search.find(self.method.name).name, self.followed.trials)
        # a search that continues another proposes other configurations with the same seed
        proposals = self.random_state if self.random_state is not None else (seed + self.continues) % 2**31
        return self.method.create(self.space, proposals, self.goal, segments, trials)

    def _check_space(self) -> None:
        """The first configurations that the procedure would draw must be usable. Raises MopError."""
        procedure = self.procedure(self.inputs.options["seed"])
        problems = []
        proposals = [p for p in procedure.ask() if p.configuration is not None][:LOOKED_AT]
        for number, proposal in enumerate(proposals):
            c = self.architectures.configuration(-1 - number, proposal.configuration)
            if problem := self.configurations.problem(c):
                raise MopError(
                    f"the space has configurations that cannot be trained: {problem}",
                    detail=f"{c['compile_params']}; {c['fit_params']}",
                )
            if problem := self.configurations.misfit(c):
                problems.append(problem)
        source = self.inputs.source
        if problems and len(problems) == len(proposals):
            raise MopError(
                f'no configuration fits the data of "{source.text}": {problems[0]}', hint=source.hint_to_fit()
            )
        for names in self._metrics_of_space() if self.metric != "loss" else ():
            if self.metric not in names:
                raise MopError(
                    f'metric "{self.metric}" is not among the metrics of all configurations of the space: '
                    f"some have {', '.join(names) or 'none'}",
                    hint=f"""Write 'metrics': [['{self.metric}']] in the space, or metric => 'loss'.""",
                )

    def _metrics_of_space(self) -> Iterator[list[str]]:
        """The names of the metrics of every kind of configuration in the space. Raises MopError."""
        for branch in self.space.branches:
            keys = ("metrics", "weighted_metrics")
            choices = [next((d.choices for d in branch.common if d.key == key), [None]) for key in keys]
            for choice in itertools.product(*choices):
                compile_values = {key: value for key, value in zip(keys, choice) if value is not None}
                try:
                    yield list(
                        params.reported_metrics(
                            params.parse_compile_params(
                                grids.compile_text({"optimizer": "SGD"}, {"loss": "mse", **compile_values})
                            )
                        )
                    )
                except params.ParameterError as error:
                    raise MopError(f"the space has configurations that cannot be trained: {error}") from None

    def _known(self, run_id: int) -> list[Any]:
        """The trials of an earlier run and their metrics: [(configuration, {iteration: value})].

        If no seed is set, the seed of the earlier run is used, so that its states can be reused."""
        with open_catalog(self.db) as catalog:
            run = own_run(self.db, catalog, run_id, "function")
            if self.inputs.options["seed"] is None:
                self.inputs.options["seed"] = run["seed"]
            configurations = {c["mst_key"]: c for c in catalog.run_configurations(run_id) if c["fold"] is None}
            values: dict[int, dict[int, float]] = {}
            for row in catalog.metrics(run_id):
                value = metric_of(row, self.metric)
                if row["dataset"] == self.dataset and value is not None:
                    values.setdefault(row["mst_key"], {})[row["iteration"]] = value
        for c in configurations.values():
            self.architectures.remember(c["model_id"], c["member"])
        return [
            ((c["model_id"], c["compile_params"], c["fit_params"]), values[key])
            for key, c in configurations.items()
            if key in values
        ]

    def execute(self, arguments: dict[str, Any], output: Output, info: str) -> None:
        """Search and write the output; `info`: the table of the trials' errors."""
        with errors_of_search():
            result = execute(
                RunSpec(
                    self.function,
                    self.inputs,
                    self.configurations,
                    output,
                    arguments,
                    self.tables,
                    search=self.spec(),
                    all_failed=_all_failed,
                )
            )
        failed = self.configurations.failures(result.failed)
        warn_of_failures(self.db, failed, len(self.configurations.own), "trials", info)
        if self.followed is None:
            self.architectures.tell_misfits()
        if result.winner is not None:
            result.winner.tell(self.db, info, "trials")

    def spec(self) -> Search:
        """The search as a part of the run spec."""
        return Search(
            procedure=self.procedure,
            metric=self.metric,
            dataset=self.dataset,
            goal=self.goal,
            differs=self._differs,
            best_line=self.method.best_line or self._best_line,
            seconds=self.seconds,
            most_trials=self.most_trials,
            known=self.known,
            stops_within_budget=search.find(self.method.name).STOPS_WITHIN_BUDGET,
            also_evaluated=self.method.also_evaluated,
            lines=self.method.lines,
            held_out=self.held_out,
            score_members=self._score_members if self.is_one_shot else None,
        )

    def _score_members(self, procedure: Any, c: Any, state: Any, segments: Any) -> Any:
        judged_by = self.metric, self.dataset, self.goal
        outputs = self.configurations.outputs
        return one_shot.scores(
            self.db, self.inputs, self.object_table, judged_by, outputs, procedure, c, state, segments
        )

    def _differs(self, earlier: Earlier, options: Mapping[str, Any]) -> str | None:
        """Why the call is not that of an earlier run, or None."""
        if earlier.tables["architectures"] != self.tables["architectures"]:
            return "its architectures are others"
        same = all(
            options[name] == earlier.settings.get(name) for name in ("kernel", "same_start", "sharing", "keras_backend")
        )
        return None if same else "its settings are others"

    def _best_line(self, mst_key: int, row: Mapping[str, Any], trials: int) -> str:
        """The INFO line about the best of so many trials by now; `row`: its metrics, of Catalog.metrics."""
        return (
            f"best of {trials} trials so far: mst_key={mst_key} after {row['iteration']} iterations, "
            f"{row['dataset']} {self.metric}={metric_of(row, self.metric):.4g}"
        )


def _all_failed(failed: Mapping[int, str]) -> str:
    if not failed:
        return "nothing is left to try: all that the space has is known from the run that this continues"
    return f"all {len(failed)} trials failed"


@contextlib.contextmanager
def errors_of_search() -> Iterator[None]:
    """What search procedures and spaces refuse, as errors of SQL."""
    try:
        yield
    except search.SearchError as error:
        raise MopError(str(error), hint=error.hint) from None
    except grids.GridError as error:
        raise MopError(str(error)) from None
