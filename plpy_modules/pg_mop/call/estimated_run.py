"""What a run is expected to take, by the measurements of its role's runs, and the limits of its role."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any

from pg_mop.backend import processor
from pg_mop.backend.errors import MopError
from pg_mop.call import role_costs, search_outlook
from pg_mop.call.configurations import Configuration, Configurations
from pg_mop.call.servers import Server
from pg_mop.call.spec import RunSpec
from pg_mop.catalog import Catalog
from pg_mop.plan.arithmetic import Arithmetic, slots
from pg_mop.plan.estimates import Estimates, FixedCosts, Sample
from pg_mop.plan.planner import Planner
from pg_mop.plan.stages import Stage
from pg_mop.schedule import setup
from pg_mop.schedule.outline import outline
from pg_mop.schedule.predicted import Prediction, in_brief


class EstimatedRun:
    """The estimates of a run that has a plan."""

    spec: RunSpec
    db: Any
    catalog: Catalog
    planner: Planner
    configurations: Configurations
    options: dict[str, Any]
    servers: dict[str | None, Server]
    fixed: FixedCosts
    seed: int
    wanted: int  # worker sessions
    machine: tuple[float, float] | None = None  # see measure_machine
    expected: Prediction | None = None  # of a run that begins, unless a search decides what is trained
    _arithmetic: dict[str, Arithmetic | None]

    @property
    def searches(self) -> bool:
        """True where a search procedure decides what is trained."""
        raise NotImplementedError

    def elements(self, stage: Stage) -> int | None:
        """The number of weights of a stage's model; None: unknown."""
        found = self.arithmetic(stage.mst_key)
        return None if found is None or found.unknown else found.parameters

    def estimates(
        self,
        planner: Planner,
        samples: Callable[[], Iterable[Sample]] = tuple,
        arithmetic: Callable[[int], Arithmetic | None] | None = None,
        sessions: int | None = None,
        threads: int | None = None,
    ) -> Estimates:
        """The seconds of a plan's units; `samples`: of other nets on this machine; `arithmetic`: of configurations, `threads`:
        of trainers, in place of the run's own; `sessions`: in place of those that the run should have."""
        return Estimates(
            planner,
            arithmetic or self.arithmetic,
            samples,
            self.fixed,
            threads or self.options["threads"],
            self.servers[None].info["cores"],
            self.machine,
            sessions or self.wanted,
        )

    def measure_machine(self) -> None:
        """Guess for this machine, where a guess decides or is shown. (A run that begins does not take the time for it.)"""
        if self.machine is None:
            self.machine = processor.measured()

    def _learn_fixed_costs(self, most_logged: int = role_costs.MOST_LOGGED) -> None:
        """Take the fixed costs from the log of the role's last runs, of at most so many units."""
        self.fixed = role_costs.fixed_costs(self.catalog, most_logged, self.architectures(), self.warm)
        if self.machine is not None:
            self.fixed = self.fixed.on_machine(self.machine[1])

    def architectures(self) -> Collection[str]:
        """The architectures of the configurations (JSON); none where a search will propose them."""
        return {c["model_arch"] for c in self.configurations}

    def _outline(self, taken: Collection[int]) -> dict[str, Any] | None:
        """What the run is expected to take, for its row in the catalog. `taken`: stages that earlier runs have trained."""
        if not self.searches:
            self.expected = outline(self._warm(self.estimates(self.planner)), taken, self.stage_bytes)
            return None if self.expected is None else in_brief(self.expected)

        def estimates_of(planner: Planner, arithmetic: Callable[[int], Arithmetic | None]) -> Estimates:
            return self._warm(self.estimates(planner, arithmetic=arithmetic))

        return search_outlook.outline(self.spec, self.planner, self.seed, estimates_of, self.db.check_interrupts)

    def _warm(self, found: Estimates) -> Estimates:
        found.warm = self.warm
        return found

    @functools.cached_property
    def warm(self) -> bool:
        """True where the trainers most likely have the plan's nets ready."""
        if self.searches:  # (its nets are not known yet)
            return False
        anywhere = setup.trains_anywhere(self.planner, list(self.configurations))
        return role_costs.are_warm(self.db, self.planner, self.options, self.wanted, anywhere)

    @functools.cached_property
    def limits(self) -> dict[str, Any]:
        """The role's limits, by the columns of mop_my_limits; None: no limit."""
        return self.catalog.execute(f"SELECT * FROM {self.catalog.schema}.mop_my_limits")[0]

    def check_limits(self, taken: Collection[int] = ()) -> None:
        """Raises MopError where the run would take more time or disk than the role may use, by the least that is expected.

        `taken`: numbers of the stages that earlier runs have trained."""
        limits = self.limits
        most = limits["max_priority"]
        if most is not None and self.options["priority"] > most:
            raise self._beyond(
                f'priority {self.options["priority"]} is more than the {most} that role "{self.db.current_user()}" may have',
                f"SET pg_mop.priority = {most};",
            )
        search = self.spec.search
        if search is not None and self.searches:  # (its plan grows as it goes on)
            if limits["max_seconds"] is not None and (search.seconds or float("inf")) > limits["max_seconds"]:
                raise self._beyond(
                    f"a search of this role must have a time limit of at most {limits['max_seconds']:g} s",
                    f"mop_search(..., time_limit => '{limits['max_seconds']:g} s')",
                )
            return
        if limits["max_seconds"] is not None:
            found = self.expected or outline(self._warm(self.estimates(self.planner)), taken, self.stage_bytes)
            least = 0.0 if found is None else found.start + found.low
            if least > limits["max_seconds"]:
                raise self._beyond(
                    f"this run is expected to take at least {least:.0f} s, more than the role's {limits['max_seconds']:g} s"
                )
        if limits["max_disk_mb"] is not None:
            size = sum(
                self.state_bytes(c) for c in self.configurations if c["mst_key"] not in self.configurations.misfits
            )
            if size > limits["max_disk_mb"] << 20:
                raise self._beyond(
                    f"the model states of this run are expected to need {size / (1 << 20):.0f} MB of disk, more than the "
                    f"role's {limits['max_disk_mb']} MB"
                )

    def _beyond(self, message: str, hint: str | None = None) -> MopError:
        return MopError(
            message,
            detail="The table mop_limit sets the role's limits (max_seconds, max_disk_mb, max_priority).",
            hint=hint
            or f"SELECT * FROM {self.db.extension}.mop_my_limits; mop_explain tells what a call takes: ask for fewer "
            "configurations, iterations or rows.",
            sqlstate="53400",
        )

    def state_bytes(self, c: Configuration) -> int:
        """Bytes of a configuration's model state, by arithmetic: weights and optimizer variables; 0: unknown."""
        found = self.arithmetic(c["mst_key"])
        compiled = c.get("compile") or {}
        given = compiled.get("optimizer_args") or {}
        kept = slots(str(compiled.get("optimizer", "Adam")), given if isinstance(given, dict) else {})
        return 0 if found is None else found.state_bytes * (1 + kept)

    def stage_bytes(self, stage: Stage) -> int:
        """Bytes of a stage's model state."""
        return self.state_bytes(self.configuration_of(stage)) or 1 << 16

    def configuration_of(self, stage: Stage) -> Configuration:
        """The configuration of a stage, or the only one of a replica."""
        return self.configurations.get(stage.mst_key) or self.configurations.first

    def arithmetic(self, mst_key: int) -> Arithmetic | None:
        """The arithmetic of the architecture of a configuration, or of a replica of the only one; None: unknown."""
        c = self.configurations.get(mst_key) or (self.configurations.first if self.spec.averaging else None)
        if c is None or not isinstance(c.get("architecture"), dict):
            return None
        text = c["model_arch"]
        if text not in self._arithmetic:
            self._arithmetic[text] = Arithmetic.find(c["architecture"])
        return self._arithmetic[text]
