"""A run that a call resumes or replays."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from pg_mop.backend.errors import MopError
from pg_mop.catalog import Catalog, LocalCatalog
from pg_mop.connections import targets
from pg_mop.plan.configuration import Configuration
from pg_mop.plan.stages import Plan
from pg_mop.schedule.board import Unit

END = "end"  # the last event in the log of a search, see SearchController.finish
# settings that decide the results: the earlier run's values count, not those in force now
SAME = (
    "seed",
    "scheduler",
    "kernel",
    "same_start",
    "sharing",
    "threads",
    "keras_backend",
    "fit_strategy",
    "most_devices",
)


def open_catalog(db: Any) -> Catalog:
    """The catalog, to read runs before a call trains anything."""
    if db.explaining is not None:
        return LocalCatalog(db)
    return Catalog(db, targets.local(db))


def own_run(db: Any, catalog: Catalog, run_id: int | None, shown: str = "model_output_table") -> dict[str, Any]:
    """The row of one of the caller's runs. Raises MopError, with a hint that lists the runs and their column `shown`."""
    run = None if run_id is None else catalog.run(run_id)
    if run is None:
        raise MopError(
            f'there is no run {"NULL" if run_id is None else run_id} of role "{db.current_user()}"',
            hint=f"SELECT run_id, status, {shown} FROM {db.extension}.mop_runs;",
        )
    return run


def options_of(earlier: Earlier, options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with which a call computes what an earlier run computed. A replay may turn sharing off."""
    alone = earlier.replay and not options["sharing"]
    same = {name: earlier.settings[name] for name in SAME if name in earlier.settings}
    return {**options, **same, "sharing": earlier.sharing and not alone}


def same_rows(before: Mapping[Any, str], found: Mapping[Any, str | None]) -> bool:
    """True where all segments that a run had have the same fingerprints now, and there is no other segment."""
    # before 0.4.0 a fingerprint covered the rows alone, not the columns that are read
    return before.keys() == found.keys() and all(
        now == then or now is not None and then.count(":") == 1 and now.startswith(then + ":")
        for then, now in ((before[key], now) for key, now in found.items())
    )


class End(NamedTuple):
    """How a configuration ended before its time: a procedure, a rule or a person stopped it for a reason, or it failed."""

    reason: str | None
    error: str | None
    blame: str | None


class Earlier:
    """A run as the catalog has it. `run`: its row; `replay`: it will be repeated in its visit order, as a new run.

    `followed`: the run whose log decides what is trained in which order: of a replay, the run that is repeated; None
    where nothing is repeated.
    """

    followed: Earlier | None = None

    def __init__(self, catalog: Catalog, run: dict[str, Any], replay: bool = False) -> None:
        self.replay, self.run_id, self.function = replay, run["run_id"], run["function"]
        self.schema = catalog.schema.replace("%%", "%")
        if replay:
            self.followed = self
        self.sessions, self.given = (
            run["sessions"],
            run["configurations"],
        )  # people may have added configurations to the `given` number
        self.seed, self.num_iterations = run["seed"], run["num_iterations"]
        parameters = run["parameters"]
        self.arguments, self.settings = parameters["arguments"], parameters["settings"]
        self.sharing = self.settings.get("sharing", False)  # before 0.4.0 nothing was shared
        self.tables = parameters.get("tables", {})
        self.code: dict[str, str] = parameters.get(
            "code", {}
        )  # {custom function or class: digest}, of a search all that it may take; {}: before 0.4.0
        self.path = parameters.get("search_path")  # the call's search_path; None: before 0.4.0
        self.averaging = self.function == "madlib_keras_fit" and self.settings.get("fit_strategy") == "averaging"
        self.read(catalog)

    def has_same_rows(self, fingerprints: Mapping[tuple[str, int], str | None]) -> bool:
        """True if its segments had these fingerprints: {(dataset, segment): fingerprint}."""
        return same_rows(self.segments, fingerprints)

    def read(self, catalog: Catalog, remote_runs: Iterable[tuple[Any, int]] = ()) -> None:
        """Read what the run has done. `remote_runs`: (catalog, number) of its runs on other servers."""
        self.configurations = cast(list[Configuration], catalog.run_configurations(self.run_id))
        self.stopped = {c["mst_key"] for c in self.configurations if c["reason"] is not None}
        self.segments = catalog.run_segments(self.run_id)
        self.stages = catalog.run_stages(self.run_id)
        keys = {row["stage"]: row["mst_keys"] or () for row in self.stages}
        self.iterations = Counter(key for asked in keys.values() for key in asked)  # mst_key -> how many it asked for
        self.evaluated: dict[int, set[int]] = {}  # mst_key -> its iterations with metrics of all datasets
        datasets = len({dataset for dataset, _ in self.segments})
        for row in self.stages:
            for key in keys[row["stage"]] if row["scores"] >= datasets else ():
                self.evaluated.setdefault(key, set()).add(row["iteration"])
        self.apart: dict[int, dict[int, str]] = {}  # mst_key -> {iteration: text}, see Plan.ask
        for row in self.stages:
            if found := re.fullmatch("[0-9a-f]{64}/(.*)", row["identity"]):
                for key in row["mst_keys"] or ():
                    self.apart.setdefault(key, {})[row["iteration"]] = found[1]
        self.attempts: dict[Unit, int] = {}  # attempts begun
        self.finished: list[Unit] = []
        self.order: dict[tuple[int, int], list[int]] = {}  # (mst_key, iteration) -> segments in the order of the visits
        # (mst_key, iteration, segment) -> kernel; of several that trained a unit: [[kernel, batches], ...]
        self.kernels: dict[tuple[int, int, int], Any] = {}
        # (mst_key, iteration, kind, dataset, segment) -> threads of the trainer
        self.threads: dict[tuple[int, int, Any, Any, int], int] = {}
        # (mst_key, iteration, segment) -> devices that the model was divided among, where these were several
        self.devices: dict[tuple[int, int, int], int] = {}
        units = self._begun(catalog.run_units(self.run_id))
        # a coordinator's server that crashes may lose the last units that it noted as begun
        for other, run_id in remote_runs:
            self._begun(other.run_units(run_id))
        for unit, row in units:
            if row["status"] == "finished":
                if row["own"]:
                    self.finished.append(unit)
                for key in keys[unit.stage] if row["threads"] is not None else ():
                    self.threads[key, unit.iteration, unit.kind, unit.dataset, unit.segment] = row["threads"]
                for key in keys[unit.stage] if unit.kind == "train" else ():
                    self.order.setdefault((key, unit.iteration), []).append(unit.segment)
                    self.kernels[key, unit.iteration, unit.segment] = row["kernels"] or row["kernel"]
                    if row["divided_by"]:
                        self.devices[key, unit.iteration, unit.segment] = row["divided_by"]
        if self.replay:
            self._read_results(catalog)

    def _read_results(self, catalog: Catalog) -> None:
        """Read what a replay repeats besides the units: the decisions of a search, and the metrics."""
        self.events = catalog.search_log(self.run_id)
        self.metrics = {
            (row["mst_key"], row["iteration"], row["dataset"]): row
            for row in catalog.metrics(self.run_id)
            if row["iteration"] in self.evaluated.get(row["mst_key"], ())
        }
        segments = {segment for dataset, segment in self.segments if dataset == "training"}
        self._visits = {c["mst_key"]: segments - set(c["held_out"] or ()) for c in self.configurations}
        # the run that trained an iteration of a configuration, if it was not this one
        self._sources = {
            (key, row["iteration"]): row["source_run"]
            for row in self.stages
            for key in row["mst_keys"] or ()
            if row["source_run"] is not None
        }
        # one that has failed is repeated up to its last whole iteration, and so is one that came to the failed stage later
        stage = {(key, row["iteration"]): row["stage"] for row in self.stages for key in row["mst_keys"] or ()}
        failed: set[int] = set()
        for c in sorted(self.configurations, key=lambda c: c["error"] is None):
            key = c["mst_key"]
            lacking = next((i for i in range(1, self.iterations[key] + 1) if not self._is_whole(key, i)), None)
            if lacking is None or (key, lacking) in self._sources:
                continue
            if c["error"] is not None or stage[key, lacking] in failed:
                failed.add(stage[key, lacking])
                self.iterations[key] = lacking - 1

    def _is_whole(self, key: int, iteration: int) -> bool:
        """True where the log has all visits of an iteration of a configuration."""
        found = self.order.get((key, iteration), ())
        return bool(found) if self.averaging else set(found) == self._visits[key]

    def follow(self, catalog: Catalog) -> None:
        """If the run is a replay, read the run that it repeats. Raises MopError where that run has been dropped."""
        number = self.tables.get("replay_of")
        if number is None:
            return
        run = catalog.run(number)
        if run is None:
            raise MopError(
                f"run {self.run_id} is a replay of run {number}, which has been dropped",
                hint=f"SELECT {self.schema}.mop_drop_run({self.run_id});",
                sqlstate="55000",
            )
        self.followed = Earlier(catalog, run, replay=True)

    @property
    def best(self) -> dict[int, int] | None:
        """{mst_key: iteration} of the states that a search kept as the best ones; None of other runs."""
        if not self.events:
            return None
        return {int(key): iteration for key, iteration in self.events[-1][1]["kept"].items()}

    @property
    def trials(self) -> list[list[Any]]:
        """The trials of a search as its log has them at its end (search/logged.py)."""
        return self.events[-1][1]["trials"]

    @property
    def ends(self) -> dict[int, End]:
        """{mst_key: End} of the configurations that a replay trains, and that ended before their time."""
        untrained = self.failed
        return {
            c["mst_key"]: End(c["reason"], c["error"], c["blame"])
            for c in self.configurations
            if (c["reason"] or c["error"]) is not None and c["mst_key"] not in untrained
        }

    def _begun(self, rows: Iterable[dict[str, Any]]) -> list[tuple[Unit, dict[str, Any]]]:
        """Count the attempts at units in these rows. Returns (Unit, row) of each."""
        units = [
            (Unit(row["iteration"], row["stage"], row["kind"], row["dataset"], row["segment"]), row) for row in rows
        ]
        for unit, row in units:
            if row["own"]:
                self.attempts[unit] = max(row["attempt"], self.attempts.get(unit, 0))
        return units

    def restore(self, plan: Plan) -> None:
        """Put the run's stages into an empty plan, under their numbers."""
        for row in self.stages:
            stage = plan.restore(
                row["stage"],
                row["parent"],
                row["iteration"],
                row["identity"],
                (row["compile_params"], row["fit_params"]),
                row["mst_key"],
                row["mst_keys"] or (),
                row["evaluated"],
            )
            if row["source_run"] is not None:  # an earlier run has its units
                stage.origin = row["source_run"], row["source_stage"]
                stage.trained, stage.scored = True, row["scores"] >= len({dataset for dataset, _ in self.segments})

    @property
    def failed(self) -> dict[int, str]:
        """{mst_key: message} of the configurations that failed by their own fault, and are not resumed. Of a replay: of those
        that failed before they had trained an iteration."""
        if self.replay:
            return {
                c["mst_key"]: c["error"]
                for c in self.configurations
                if c["error"] is not None and not self.iterations[c["mst_key"]]
            }
        failed = {
            c["mst_key"]: c["error"]
            for c in self.configurations
            if c["error"] is not None and c["blame"] != "infrastructure"
        }
        if self.averaging and failed:  # the model fails with any of its replicas
            return {c["mst_key"]: next(iter(failed.values())) for c in self.configurations}
        return failed

    def differs(self, configurations: Sequence[Configuration], options: Mapping[str, Any]) -> str | None:
        """Why a call with these configurations and settings is not the call of this run, or None if it is."""

        def contents(rows: Iterable[Configuration]) -> dict[int, list[Any]]:
            return {
                c["mst_key"]: [
                    c.get(name) for name in ("model_id", "compile_params", "fit_params", "model_arch", "weights_md5")
                ]
                for c in rows
            }

        now, before = contents(configurations), contents(self.configurations)
        given = len(before) if self.averaging else self.given
        if len(now) != given or now != {key: c for key, c in before.items() if key in now}:
            return "its configurations are others"
        for name in SAME:
            if (
                options[name] is not None
                and options[name] != self.settings.get(name)
                and (name != "sharing" or name in self.settings)
            ):
                return f"pg_mop.{name} was {self.settings.get(name)}"
        if len(self.failed) == len(self.configurations):
            return "all of its configurations have failed"
        return None

    def check_complete(self) -> None:
        """Raises MopError unless the log has all visits that a replay repeats."""
        missing = [
            (key, i)
            for key in sorted(self._visits)
            for i in range(1, self.iterations[key] + 1)
            if not self._is_whole(key, i)
        ]
        for key, i in missing:
            if (key, i) in self._sources:
                raise MopError(
                    f"the log of run {self.run_id} lacks what run {self._sources[key, i]} trained for it: mst_key {key}",
                    detail="That run has been dropped.",
                    hint=f"SET pg_mop.seed = {self.seed}; SET pg_mop.reuse = off; and the same call with new output tables "
                    "trains all of it anew.",
                    sqlstate="55000",
                )
        if missing:
            raise self._incomplete(f"run {self.run_id} has not been trained to its end: mst_key {missing[0][0]}")

    def check_search(self, written: bool) -> None:
        """Raises MopError unless the log has a search to its end. `written`: the run's output is written."""
        if self.events and self.events[-1][0] == END:
            return
        if not written:
            raise self._incomplete(f"the search of run {self.run_id} has not come to its end")
        raise MopError(
            f"the log of run {self.run_id} lacks the end of its search",
            detail="An earlier version of pg_mop did not write it.",
            hint=f"SET pg_mop.seed = {self.seed}; and the same call with new output tables makes the same proposals for "
            "the same results.",
            sqlstate="0A000",
        )

    def _incomplete(self, message: str) -> MopError:
        return MopError(
            message,
            detail="A replay repeats a run whose log is whole.",
            hint=f"First SELECT {self.schema}.mop_resume({self.run_id});",
            sqlstate="55000",
        )
