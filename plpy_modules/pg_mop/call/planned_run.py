"""The checks of a call that trains, and its plan: everything before a run is opened.

A coordinator (run/coordinator.py) goes on from here and trains. A preview (explain/preview.py) tells the plan and trains
nothing.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from typing import Any

from pg_mop.backend import object_table
from pg_mop.backend.errors import MopError
from pg_mop.call import deadline, segments, trainer_memory
from pg_mop.call.configurations import Configuration
from pg_mop.call.devices import Places
from pg_mop.call.earlier import Earlier, options_of
from pg_mop.call.estimated_run import EstimatedRun
from pg_mop.call.servers import Server
from pg_mop.call.spec import RunSpec
from pg_mop.call.trainer_memory import TrainerMemory
from pg_mop.call.unit_specs import UnitSpecs
from pg_mop.connections.locks import Locks
from pg_mop.plan.arithmetic import Arithmetic
from pg_mop.plan.cost_history import CostHistory
from pg_mop.plan.estimates import FixedCosts
from pg_mop.plan.planner import Planner, Workload
from pg_mop.schedule import setup
from pg_mop.schedule.board import Board
from pg_mop.schedule.device_parts import DeviceParts
from pg_mop.schedule.divided_nets import DividedNets
from pg_mop.schedule.unit import Unit


class PlannedRun(EstimatedRun):
    """One call that trains: `reserve`, then `check`, then `_plan`.

    A subclass opens the catalog (`_open_catalog`).
    """

    run_id: Any = None  # the run's number, once it is open
    deadline: deadline.Deadline | None = None
    board: Board
    unit_specs: UnitSpecs

    def _open_catalog(self, stack: contextlib.ExitStack) -> None:
        """Open the catalog, and look at the servers of the segments. Raises MopError."""
        raise NotImplementedError

    def __init__(self, spec: RunSpec) -> None:
        self.spec, self.inputs, self.configurations = spec, spec.inputs, spec.configurations
        self.db, self.engine = spec.inputs.db, spec.inputs.engine
        self.options: dict[str, Any] = dict(spec.inputs.options)
        self.earlier: Earlier | None = spec.inputs.earlier
        self.servers: dict[str | None, Server] = {}
        self.segments: segments.Segments = {}
        self.failed: dict[int, str] = {}
        self.fixed = FixedCosts()
        self.device_parts: DeviceParts | None = None  # (a preview has none before its trial)
        self._arithmetic: dict[str, Arithmetic | None] = {}  # of each architecture (JSON)
        self._threads_at: dict[str | None, int | None] = {}  # the limits that servers have told

    def reserve(self) -> None:
        """Keep other calls from the output table until this call ends. Raises MopError."""
        self.locks = Locks(self.db, lambda: self.engine.target(None), self.options["lock_timeout"])
        self.locks.reserve(self.spec.output.table)

    def check(self, stack: contextlib.ExitStack) -> None:
        """Everything that may refuse the call before its run is opened. Raises MopError."""
        if self.spec.application is None:
            self.deadline = deadline.read(self.db, self.options["deadline"])
            self.options["deadline"] = self.deadline and self.deadline.text  # (an interval began at this call)
        self._keep_writers_out()
        self.segments = segments.find(self.spec, self.options)
        self._open_catalog(stack)
        self._check_rows()
        self._resume_or_begin()

    def _keep_writers_out(self) -> None:
        """Lock the packed tables against writers to the end of the call, if the caller may. Raises MopError.

        A call that applies a model locks nothing: it finds that rows have changed, and leaves the work to the caller's
        own session.
        """
        for packed in self.inputs.tables if self.spec.application is None else ():
            self.locks.share(packed)
            self.engine.share(packed)

    def _check_rows(self) -> None:
        """The rows must be those that the caller sees, on every server. Raises MopError."""
        segments.check_visible(self.spec, self.catalog, self.segments)
        segments.check_copies(self.spec, self.options, self.catalog, self.segments, self.earlier)
        self.engine.check_whole(self.catalog.execute)
        self.catalog.housekeeping(self.options["checkpoint_mb"] << 20)

    def _resume_or_begin(self) -> None:
        """Find the run that this call goes on with or replays, if any. Raises MopError."""
        self.earlier = earlier = self.earlier or self._unfinished()
        if self.spec.trained_on is not None:
            self._check_unchanged(self.spec.trained_on)
        if earlier is not None:
            self._check_unchanged(earlier)
            self.options = options_of(earlier, self.options)
            self.configurations.earlier = earlier
            if self.spec.search is not None:
                self.configurations.check(
                    [{**c, "error": None} for c in earlier.configurations], self.configurations.functions
                )
            else:
                self.configurations.take_up(earlier.configurations)
        self.history = CostHistory(self.catalog.costs)
        self.seed = self.options["seed"] if self.options["seed"] is not None else self.drawn_seed()

    def drawn_seed(self) -> int:
        """The seed where the caller has set none."""
        return secrets.randbits(31)

    @property
    def resumes(self) -> bool:
        return self.earlier is not None and not self.earlier.replay

    @property
    def followed(self) -> Earlier | None:
        """The run whose log decides what is trained, of a replay."""
        return self.earlier.followed if self.earlier is not None else None

    @property
    def searches(self) -> bool:
        """True where a search procedure decides what is trained."""
        return self.spec.search is not None and self.followed is None

    def _unfinished(self) -> Earlier | None:
        """The unfinished run of the same call, if this call goes on with it."""
        spec, run = self.spec, None
        if self.options["resume"]:
            run = self.catalog.unfinished(spec.function, spec.output.name, spec.arguments)
        if run is None:
            return None
        earlier = Earlier(self.catalog, run)
        difference = self._differs(earlier)
        if difference is None and not earlier.has_same_rows(self._fingerprints()):
            difference = "the packed rows have changed since"
        if difference is not None:
            self.db.info(
                f"run {earlier.run_id} of the same call is unfinished, but {difference}: this call begins a new run"
            )
            return None
        self.db.info(
            f"going on with run {earlier.run_id} of the same call, of which {len(earlier.finished)} units are "
            f"done (SET pg_mop.resume = off; begins anew)"
        )
        return earlier

    def _differs(self, earlier: Earlier) -> str | None:
        """Why the call is not that of the run `earlier`, or None."""
        if self.spec.search is not None:
            return self.spec.search.differs(earlier, self.options)
        return earlier.differs(self._noted(), self.options)

    def _check_unchanged(self, earlier: Earlier) -> None:
        """The rows must be those that the earlier run was trained on. Raises MopError."""
        if not earlier.has_same_rows(self._fingerprints()):
            hint = None
            if earlier is self.spec.trained_on:
                hint = f"Call {earlier.function} again to train on the rows as they are."
            elif earlier.followed is None:
                hint = "SET pg_mop.resume = off; and call again to train on the rows as they are."
            raise MopError(
                f'the packed rows of "{self.inputs.source.text}" or of its validation table have changed since run '
                f"{earlier.run_id} began",
                detail="They were written to, packed anew or moved.",
                hint=hint,
                sqlstate="55000",
            )

    def _fingerprints(self) -> dict[tuple[str, int], str | None]:
        return {key: segment.fingerprint for key, segment in self.segments.items()}

    def _plan(self) -> None:
        """Plan the run: the search plan, and how many sessions it should have (`wanted`)."""
        spec, inputs, options = self.spec, self.inputs, self.options
        if self.earlier is not None:
            self.configurations.misfits.update(self.earlier.failed)
        if self.followed is not None:
            self.configurations.misfits.update(self.followed.failed)
        workload = Workload(
            table=inputs.source.table.oid,
            columns=(inputs.source.inputs, inputs.source.outputs) if spec.application is None else ((), ()),
            shape=self._shape(),
            segments=self.segments,
            options=options,
            seed=self.seed,
            num_iterations=inputs.num_iterations,
            metrics_iterations=inputs.metrics_iterations,
            averaging=spec.averaging,
            searches=self.searches,
            use_gpus=inputs.use_gpus,
        )
        info, on_gpus = self.servers[None].info, bool(inputs.use_gpus and self.servers[None].info["gpus"])
        most_share = self.limits["device_share"] if self._packs() else None
        if any(self.places().are_virtual(server) for server in self.servers):
            trainer_memory.check_virtual(options, self.earlier is not None)
        options["gpu_memory_share"] = trainer_memory.allowed_share(options, most_share, self.db.extension)
        trainer_memory.check(options, info, on_gpus, most_share, self.db.extension)
        if self.followed is not None:
            self._check_logged_threads(self.followed)
        self.planner = Planner(workload, list(self.configurations), self.history, self.earlier)
        most = None
        if spec.application is not None:
            most = {name: max(s.info["cores"], s.info["gpus"]) for name, s in self.servers.items()}
        self.wanted = self.planner.sessions(inputs.capacity, most)
        options["deal_threads"] = self._deals()
        options["most_threads"] = self._most_threads() if options["deal_threads"] else None
        options["threads"] = self.history.threads = self.planner.threads(self.servers[None].info["cores"], self.wanted)
        asking = () if self.searches else self.configurations
        self.planner.ask_for_all(asking, self.configurations.misfits)

    def _packs(self) -> bool:
        """True where trainers have parts of devices: not on Ray and on Greenplum, which have other places for trainers."""
        return not self.options["trainers"] and all(s.host_segment is None for s in self.segments.values())

    def _deals(self) -> str | None:
        """The setting, where trainers may have other threads towards the run's end: where nobody has named their number or
        the kernel, and all trainers are processes of the servers with the segments that train on their cores. Else None."""
        options = self.options
        mine = options["threads"] is None
        if self.resumes:  # (its settings have the number that it began with)
            assert self.earlier is not None
            mine = bool(self.earlier.settings.get("deal_threads"))
        deals = (
            mine
            and options["deal_threads"] != "off"
            and options["kernel"] == "auto"
            and self.followed is None
            and self.spec.application is None
            and not self.spec.averaging
            and not options["trainers"]
            and not (self.inputs.use_gpus and self.servers[None].info["gpus"])
            and all(s.host_segment is None for s in self.segments.values())
        )
        return options["deal_threads"] if deals else None

    def _is_alone(self) -> bool:
        """True where all segments are on this server, without copies on others."""
        return all(segment.server is None and not segment.copies for segment in self.segments.values())

    def _most_threads(self) -> int:
        """How many threads a trainer on this server may have: as many as there are cores, or as the role's limits allow."""
        most = self.limits["threads"]
        cores = self.servers[None].info["cores"]
        return cores if most is None else min(cores, most)

    def _check_logged_threads(self, followed: Earlier) -> None:
        """Raises MopError where the role may not have as many threads as the trainers of the run that is repeated had: with
        fewer, sums would be rounded otherwise."""
        most, needed = self.limits["threads"], max(followed.threads.values(), default=0)
        here = not self.options["trainers"] and all(s.server is None for s in self.segments.values())
        if most is not None and needed > most and here:
            raise MopError(
                f"a replay of run {followed.run_id} needs trainers with {needed} threads, and the role may have {most}",
                detail="Sums depend on the number of threads by rounding. The table mop_limit sets the limit (threads).",
                hint=f"SELECT threads FROM {self.db.extension}.mop_my_limits; shows the limit, which an administrator sets.",
                sqlstate="53400",
            )

    def device_parts_of(self, board: Board, planner: Planner | None = None) -> DeviceParts:
        """The parts of devices that the trainers of a run's commands have. `planner`: of the board, if not the run's own."""
        memory = self.trainer_memory(planner)
        return trainer_memory.device_parts(
            memory, board, self.options, self.inputs.use_gpus, self._info_of, self.places(), self.divided(memory)
        )

    def _info_of(self, server: str | None) -> dict[str, Any]:
        return self.servers[server].info if server in self.servers else {"gpus": 0}

    def places(self) -> Places:
        """The devices of the run's servers. (A call that applies a model has one device for it.)"""
        divides = self._packs() and self.spec.application is None
        return Places(self.options, self.inputs.use_gpus, self._info_of, divides, self._threads_limit)

    def _threads_limit(self, server: str | None) -> int | None:
        """The limit of a trainer's threads on a server; None: no limit."""
        limit: int | None = self.limits["threads"]
        return limit

    def divided(self, memory: TrainerMemory) -> DividedNets:
        """How many devices each net is divided among. `memory`: of the trainers of a planned run."""
        planner, places = memory.planner, self.places()
        stages = planner.plan.stages
        found = DividedNets(
            places.most,
            places.memory,
            lambda number, devices, server: memory.needed_on_each_of(stages[number], devices, places.gpus(server) > 0),
            lambda number: planner.sharing.key(stages[number]),
            None if self.followed is None else self._logged_devices(planner),
            any(places.most(server) > 1 for server in self.servers),
        )
        for unit, devices in self._logged_devices(planner).items() if self.resumes else ():
            found.more(unit.stage, devices)
        return found

    def _logged_devices(self, planner: Planner) -> dict[Unit, int]:
        earlier = self.followed or self.earlier
        return {} if earlier is None else setup.logged_devices(planner, earlier.devices, self.configurations.misfits)

    def trainer_memory(self, planner: Planner | None = None) -> TrainerMemory:
        """The memory that the trainers of a planned run need."""
        return TrainerMemory(
            planner or self.planner,
            list(self.configurations),
            self.segments,
            self.wanted,
            self.arithmetic,
            self.stage_bytes,
        )

    def _shape(self) -> str:
        """The shape of a row as text, such as '28 x 28 -> 10'; '' where nothing is trained, and no cost is noted."""
        if self.spec.application is not None:
            return ""
        inputs = len(self.inputs.source.inputs)
        texts = [" x ".join(map(str, shape)) for shape in self.configurations.shapes]
        return f"{', '.join(texts[:inputs])} -> {', '.join(texts[inputs:])}"

    def _write_run(
        self,
        catalog: Any,
        function: str,
        configurations: Sequence[Configuration],
        parameters: dict[str, Any],
        expected_seconds: float | None,
        prediction: dict[str, Any] | None,
    ) -> int:
        inputs, places = self.inputs, len(self.planner.workload.keys("training"))
        return catalog.open_run(
            {
                "function": function,
                "source_table": inputs.source.text,
                "validation_table": inputs.validation and inputs.validation.text,
                "model_output_table": self.spec.output.name,
                "seed": self.seed,
                "scheduler": setup.scheduler_name(self.planner),
                "num_iterations": inputs.num_iterations,
                "metrics_iterations": inputs.metrics_iterations,
                "configurations": len(self.configurations),
                "segments": places,
                "sessions": self.wanted,
                "parameters": parameters,
                "expected_seconds": expected_seconds,
                "prediction": prediction,
            },
            [(dataset, segment) for (dataset, _), segment in self.segments.items()],
            configurations,
            self.planner.plan,
            self.planner.visits,
        )

    def _server(self, worker: int | None) -> Server:
        """The Server of a worker; None: the coordinator's own."""
        return self.servers[None if worker is None else self.board.server(worker)]

    def _unit_specs(self) -> UnitSpecs:
        spec, inputs, planner, functions = self.spec, self.inputs, self.planner, self.configurations.functions
        make = UnitSpecs if spec.application is None else spec.application.unit_specs
        return make(
            self.engine,
            self._server,
            {"training": inputs.source, "validation": inputs.validation},
            self.segments,
            planner.plan,
            self.board,
            planner.sharing,
            self.configurations.outputs,
            self.options,
            self.seed,
            functions and object_table.within_schema(functions),
            self._digests_of,
            inputs.use_gpus,
            inputs.began,
            planner.workload.rows if spec.averaging else None,
            planner.may_chain,
            setup.logged_kernels(planner, self.configurations.misfits),
            cost_history=self.history,
            inherited=planner.inherited,
            device_parts=self.device_parts,
            places=self.places(),
        )

    def _digests_of(self, mst_key: int) -> Any:
        """Digests of the custom functions of a configuration, or of a replica of the only one."""
        return (self.configurations.get(mst_key) or self.configurations.first)["functions"]

    def _noted(self) -> list[Configuration]:
        """The configurations as the catalog has them: each replica of averaging is one."""
        if self.spec.averaging:
            keys = range(1, sum(dataset == "training" for dataset, _ in self.segments) + 1)
            return [{**c, "mst_key": key} for key in keys for c in self.configurations]
        return list(self.configurations)
