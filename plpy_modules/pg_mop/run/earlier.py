"""A run that a call goes on with, or does again."""

import re
from collections import Counter

from pg_mop.backend.database import MopError
from pg_mop.catalog import Catalog
from pg_mop.connections import targets
from pg_mop.schedule.board import Unit

# settings that decide what is computed: those of the run count, not those in force now
SAME = ("seed", "scheduler", "kernel", "same_start", "sharing", "threads", "keras_backend", "fit_strategy")


def open_catalog(db):
    """The catalog, to look at runs before a call trains anything."""
    return Catalog(db, targets.local(db))


def own_run(db, catalog, run_id, shown="model_output_table"):
    """The row of a run of the caller's; the hint lists his runs with the column `shown`. Raises MopError."""
    run = None if run_id is None else catalog.run(run_id)
    if run is None:
        raise MopError(
            f'there is no run {"NULL" if run_id is None else run_id} of role "{db.current_user()}"',
            hint=f"SELECT run_id, status, {shown} FROM {db.extension}.mop_runs;",
        )
    return run


def options_of(earlier, options):
    """The settings with which a call computes what an earlier run computed. A replay may turn sharing off."""
    alone = earlier.replay and not options["sharing"]
    same = {name: earlier.settings[name] for name in SAME if name in earlier.settings}
    return {**options, **same, "sharing": earlier.sharing and not alone}


class Earlier:
    """What the catalog knows of a run. `replay`: it is done again, in its visit order, as a new run."""

    def __init__(self, catalog, run, replay=False):
        self.replay, self.run_id, self.function = replay, run["run_id"], run["function"]
        self.sessions, self.given = run["sessions"], run["configurations"]  # (more may have been added to these)
        self.seed, self.num_iterations = run["seed"], run["num_iterations"]
        parameters = run["parameters"]
        self.arguments, self.settings = parameters["arguments"], parameters["settings"]
        self.sharing = self.settings.get("sharing", False)  # before 0.4.0 nothing was shared
        self.tables = parameters.get("tables", {})
        self.path = parameters.get("search_path")  # by which its call looked names up; None: before 0.4.0
        self.averaging = self.function == "madlib_keras_fit" and self.settings.get("fit_strategy") == "averaging"
        self.read(catalog)

    def has_same_rows(self, fingerprints):
        """True where its segments had these fingerprints: {(dataset, segment): fingerprint}."""
        # before 0.4.0 they told of rows alone, not of the columns that are read
        return self.segments.keys() == fingerprints.keys() and all(
            fingerprint == before or before.count(":") == 1 and fingerprint.startswith(before + ":")
            for before, fingerprint in ((self.segments[key], found) for key, found in fingerprints.items())
        )

    def read(self, catalog, remote_runs=()):
        """Read what the run has done; `guests`: its (Catalog, number) on other servers."""
        self.configurations = catalog.run_configurations(self.run_id)
        self.stopped = {c["mst_key"] for c in self.configurations if c["reason"] is not None}
        self.segments = catalog.run_segments(self.run_id)
        self.stages = catalog.run_stages(self.run_id)
        keys = {row["stage"]: row["mst_keys"] or () for row in self.stages}
        self.iterations = Counter(key for asked in keys.values() for key in asked)  # mst_key -> how many it asked for
        self.apart = {}  # mst_key -> {iteration: text}, see Plan.ask
        for row in self.stages:
            if found := re.fullmatch("[0-9a-f]{64}/(.*)", row["identity"]):
                for key in row["mst_keys"] or ():
                    self.apart.setdefault(key, {})[row["iteration"]] = found[1]
        self.attempts, self.finished, self.order, self.kernels = {}, [], {}, {}
        units = self._begun(catalog.run_units(self.run_id))
        for (
            catalog,
            run_id,
        ) in remote_runs:  # a coordinator's server that crashes loses what it noted last of begun units
            self._begun(catalog.run_units(run_id))
        for unit, row in units:
            if row["status"] == "finished":
                if row["own"]:
                    self.finished.append(unit)
                for key in keys[unit.stage] if unit.kind == "train" else ():
                    self.order.setdefault((key, unit.iteration), []).append(unit.segment)
                    self.kernels[key, unit.iteration, unit.segment] = row["kernel"]

    def _begun(self, rows):
        """Count the attempts that rows of units tell of: [(Unit, row)]."""
        units = [
            (Unit(row["iteration"], row["stage"], row["kind"], row["dataset"], row["segment"]), row) for row in rows
        ]
        for unit, row in units:
            if row["own"]:
                self.attempts[unit] = max(row["attempt"], self.attempts.get(unit, 0))
        return units

    def restore(self, plan):
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
            if row["source_run"] is not None:  # there are no units of it here
                stage.origin = row["source_run"], row["source_stage"]
                stage.trained, stage.scored = True, row["scores"] >= len({dataset for dataset, _ in self.segments})

    @property
    def failed(self):
        """{mst_key: message} of the configurations that failed by their own fault, which do not go on."""
        failed = {
            c["mst_key"]: c["error"] for c in self.configurations if c["error"] is not None and c["blame"] != "place"
        }
        if self.averaging and failed:  # what ails one replica ails the model
            return {c["mst_key"]: next(iter(failed.values())) for c in self.configurations}
        return failed

    def differs(self, configurations, options):
        """Why a call with these configurations and settings is not that of this run; None: it is."""

        def what(rows):
            return {
                c["mst_key"]: [
                    c.get(name) for name in ("model_id", "compile_params", "fit_params", "model_arch", "weights_md5")
                ]
                for c in rows
            }

        mine, theirs = what(configurations), what(self.configurations)
        given = len(theirs) if self.averaging else self.given
        if len(mine) != given or mine != {key: c for key, c in theirs.items() if key in mine}:
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

    def check_complete(self):
        """Raises MopError where the log does not have every visit of the configurations that did not fail."""
        trained = [c["mst_key"] for c in self.configurations if c["mst_key"] not in self.failed]
        segments = {segment for dataset, segment in self.segments if dataset == "training"}
        asked = [(key, i) for key in trained for i in range(1, self.iterations[key] + 1)]
        missing = [key for key, i in asked if set(self.order.get((key, i), ())) != segments]
        if self.averaging:
            missing = [key for key, i in asked if (key, i) not in self.order]
        if missing:
            if any(row["source_run"] is not None for row in self.stages):
                raise MopError(
                    f"the log of run {self.run_id} lacks what an earlier run trained for it: mst_key {missing[0]}",
                    detail="That run has been dropped, or this one was not trained to its end.",
                    sqlstate="55000",
                )
            raise MopError(
                f"run {self.run_id} has not been trained to its end: mst_key {missing[0]}",
                hint="mop_resume goes on with it.",
                sqlstate="55000",
            )
