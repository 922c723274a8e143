"""The run coordinator: opens the catalog, servers and sessions of a run, lets the executor work, and closes them.

`execute(spec)` trains and writes the output tables; `apply(spec)` applies a trained model and leaves no run behind.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import psycopg2

import mop_udf
from mop_udf import aggregate
from pg_mop.backend import object_table, processor, trainers
from pg_mop.backend.errors import MopError
from pg_mop.catalog import Catalog
from pg_mop.connections.locks import Locks
from pg_mop.plan.arithmetic import Arithmetic, slots
from pg_mop.plan.cost_history import CostHistory
from pg_mop.plan.estimates import Estimates, FixedCosts, Sample
from pg_mop.plan.planner import Planner, Workload
from pg_mop.plan.sharing import epochs
from pg_mop.plan.stages import Stage
from pg_mop.run import deadline, ending, role_costs, runs_beside, search_outlook, segments, trainer_memory
from pg_mop.run.adoption import Adoption
from pg_mop.run.configurations import Configuration
from pg_mop.run.controllers import FixedController, ReplayController, RunController
from pg_mop.run.earlier import Earlier, options_of
from pg_mop.run.executor import Executor
from pg_mop.run.messages import Messages, listed
from pg_mop.run.remote_runs import RemoteRuns
from pg_mop.run.search_controller import SearchController
from pg_mop.run.servers import Server
from pg_mop.run.sessions import Sessions
from pg_mop.run.solver import SolverProcess
from pg_mop.run.spec import RunResult, RunSpec
from pg_mop.run.trainer_memory import TrainerMemory
from pg_mop.run.turns import Answer, Turns
from pg_mop.run.unit_specs import UnitSpecs
from pg_mop.schedule import setup
from pg_mop.schedule.board import Board
from pg_mop.schedule.dealing import Dealer, LoggedThreads, Threads
from pg_mop.schedule.dealing_by_server import ServerDealers
from pg_mop.schedule.milp import Milp
from pg_mop.schedule.outline import outline
from pg_mop.schedule.packing import Packing
from pg_mop.schedule.planned import Planned
from pg_mop.schedule.predicted import Prediction, in_brief

MEASURED_STAGES = 200  # stages of a net, about, whose units tell its cost: of the later half of iterations


def execute(spec: RunSpec) -> RunResult:
    """Train as the spec says, and write its output tables in the caller's transaction. Raises MopError.

    A call that is explained ends here with its plan (backend/explaining.py).
    """
    if spec.inputs.db.explaining is not None:
        spec.inputs.db.explaining.take(spec)
    coordinator = Coordinator(spec)
    coordinator.reserve()
    coordinator.run()
    with coordinator.output():
        spec.output.write(coordinator.result)
    return coordinator.result


def apply(spec: RunSpec) -> RunResult:
    """Apply a trained model as the spec says, and leave no run behind. Raises MopError."""
    coordinator = Coordinator(spec)
    coordinator.reserve()
    coordinator.run()
    coordinator.catalog.close_run(coordinator.run_id, "finished")
    coordinator.drop()
    coordinator.catalog.close()
    return coordinator.result


class Coordinator:
    """Coordinates one run. In order: `reserve`, `run`, then the caller writes within `output`."""

    result: RunResult
    run_id: Any = None  # the run's number, once it is open
    sessions: Sessions | None = None
    catalog: Catalog
    planner: Planner
    executor: Executor | None = None
    solver: SolverProcess | None = None  # of the scheduler milp
    deadline: deadline.Deadline | None = None
    machine: tuple[float, float] | None = None  # see measure_machine
    expected: Prediction | None = None  # of a run that begins, unless a search decides what is trained

    def __init__(self, spec: RunSpec) -> None:
        self.spec, self.inputs, self.configurations = spec, spec.inputs, spec.configurations
        self.db, self.engine = spec.inputs.db, spec.inputs.engine
        self.options: dict[str, Any] = dict(spec.inputs.options)
        self.earlier: Earlier | None = spec.inputs.earlier
        self.servers: dict[str | None, Server] = {}
        self.segments: segments.Segments = {}
        self.failed: dict[int, str] = {}
        self.fixed = FixedCosts()
        self.packing: Packing | None = None  # (a preview has none before its trial)
        self._arithmetic: dict[str, Arithmetic | None] = {}  # of each architecture (JSON)

    def reserve(self) -> None:
        """Keep other calls from the output table until this call ends. Raises MopError."""
        self.locks = Locks(self.db, lambda: self.engine.target(None), self.options["lock_timeout"])
        self.locks.reserve(self.spec.output.table)

    # --- the run --------------------------------------------------------------------------------------
    def run(self) -> None:
        """Open the run, train, and close everything but the catalog. Raises MopError.

        The catalog stays open, since the output is written with it and no other connection may be free then.
        """
        started = self.db.value("SELECT clock_timestamp()::timestamp::text")
        with contextlib.ExitStack() as stack:  # closed if there is an error
            self.check(stack)
            sessions = self._open_run(stack)
            executor = self._executor(sessions)
            executor.go()
            if self.solver is not None:
                self.solver.close()
            self.engine.check_whole(self.catalog.execute)
            self._finish(sessions, executor, started)
            stack.pop_all()

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

    def _open_catalog(self, stack: contextlib.ExitStack) -> None:
        """Open the catalog's session, and look at the other servers. Raises MopError."""
        options, target = self.options, self.engine.target(None)
        self.catalog = Catalog(self.db, target)
        stack.callback(self.catalog.close)
        local = any(s.server is None and s.host_segment is None for s in self.segments.values())
        if local:
            trainers.expect(self.db, options)
        info = self.engine.info(options["keras_backend"])
        self.servers[None] = Server(None, target, self.catalog, None, self.db.extension, info)
        self.remote_runs = RemoteRuns(self.spec, self.segments, self.servers, self._open_remote_run)
        stack.callback(self._close_remote_catalogs)
        self.remote_runs.reach()

    def _close_remote_catalogs(self) -> None:
        for server in self.remote_runs.remote:
            server.catalog.close()

    def _check_rows(self) -> None:
        """The rows must be those that the caller sees, on every server. Raises MopError."""
        segments.check_visible(self.spec, self.catalog, self.segments)
        segments.check_copies(self.spec, self.options, self.catalog, self.segments, self.earlier)
        self.engine.check_whole(self.catalog.execute)
        self.catalog.housekeeping(self.options["checkpoint_mb"] << 20)

    def _resume_or_begin(self) -> None:
        """Find the run that this call goes on with or replays, if any. Raises MopError."""
        self.earlier = earlier = self.earlier or self._unfinished()
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
            raise MopError(
                f'the packed rows of "{self.inputs.source.text}" or of its validation table have changed since run '
                f"{earlier.run_id} began",
                detail="They were written to, packed anew or moved.",
                hint=None
                if earlier.followed is not None
                else "SET pg_mop.resume = off; and call again to train on the rows as they are.",
                sqlstate="55000",
            )

    def _fingerprints(self) -> dict[tuple[str, int], str]:
        return {key: segment.fingerprint for key, segment in self.segments.items()}

    # --- the run in the catalog -----------------------------------------------------------------------
    def _open_run(self, stack: contextlib.ExitStack) -> Sessions:
        """Open the run in the catalog, plan it, and open its remote runs. Returns its sessions, which are not open yet."""
        earlier = self.earlier if self.resumes else None
        if earlier is not None:
            self.run_id = self.servers[None].run_id = self.remote_runs.run_id = earlier.run_id
            self.catalog.reopen_run(self.run_id)
        stack.push(self._failed)
        if earlier is not None:
            # read once more: its last units may have ended only now
            earlier.read(self.catalog, self.remote_runs.reopen())
        self._plan()
        if earlier is not None:
            self._copy_log()
            self.adoption = Adoption(self.spec, self.planner, self.catalog, earlier.run_id)
            self.adoption.elements = self.elements
            self.adoption.share()
            self._start_paths()
        else:
            self._begin_run()
        for server in self.remote_runs.remote:
            self.remote_runs.open(server)
        moved = None
        if self.engine.away:
            moved = {key: segment.at(self.servers).server for key, segment in self.segments.items()}
        self.board = setup.make_board(
            self.planner,
            list(self.configurations),
            self.configurations.misfits,
            self.wanted,
            moved,
            self.spec.application is None,
        )
        self.scheduler: Any = setup.make_scheduler(self.planner, self.board)
        if isinstance(self.scheduler, Planned):
            self.scheduler.on_notice = lambda text: self.db.warning(f"run {self.run_id}: {text}")
        if isinstance(self.scheduler, Milp):
            self.scheduler.solver = self.solver = SolverProcess(mop_udf.home or sys.prefix)
            stack.callback(self.solver.close)
        self.threads = self._threads()
        self.packing = self.packing_of(self.board)
        self.unit_specs = self._unit_specs()
        self.sessions = Sessions(
            self.db,
            self._server,
            self.unit_specs.trainer,
            self.unit_specs.wants,
            f"pg_mop run {self.run_id}",
            self.options["lock_timeout"],
        )
        return self.sessions

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
        options["gpu_memory_share"] = trainer_memory.allowed_share(options, most_share, self.db.extension)
        trainer_memory.check(options, info, on_gpus, most_share, self.db.extension)
        if self.followed is not None:
            self._check_logged_threads(self.followed)
        self.planner = Planner(workload, list(self.configurations), self.history, self.earlier)
        most = None
        if spec.application is not None:
            most = {name: max(s.info["cores"], s.info["gpus"]) for name, s in self.servers.items()}
        self.wanted = self.planner.sessions(inputs.capacity, most)
        options["deal_threads"], self.history.divides = self._deals(), options["tail"] == "data-parallel"
        options["most_threads"] = self._most_threads() if options["deal_threads"] else None
        options["threads"] = self.history.threads = self.planner.threads(self.servers[None].info["cores"], self.wanted)
        asking = () if self.searches else self.configurations
        self.planner.ask_for_all(asking, self.configurations.misfits)

    def _packs(self) -> bool:
        """True where trainers have parts of devices: not on Ray and on Greenplum, which have other places for trainers."""
        return not self.options["trainers"] and all(s.host_segment is None for s in self.segments.values())

    def _deals(self) -> str | None:
        """The setting, where trainers may have other threads towards the run's end: where nobody has named their number or
        the kernel, and all trainers are processes of the servers with the segments that train on their cores. Else None.

        With pg_mop.tail = 'data-parallel', more threads are more devices, on this server alone, also where their number and
        the kernel are named, and in a resume whatever the session's setting is."""
        options = self.options
        divides = options["tail"] == "data-parallel"
        mine = options["threads"] is None or divides
        if self.resumes:  # (its settings have the number that it began with)
            assert self.earlier is not None
            mine = bool(self.earlier.settings.get("deal_threads"))
        setting = "auto" if divides and options["deal_threads"] == "off" else options["deal_threads"]
        deals = (
            mine
            and setting != "off"
            and (options["kernel"] == "auto" or divides)
            and self.followed is None
            and self.spec.application is None
            and not self.spec.averaging
            and not options["trainers"]
            and not (self.inputs.use_gpus and self.servers[None].info["gpus"])
            and all(s.host_segment is None for s in self.segments.values())
            and (not divides or self._is_alone())
        )
        if divides and not deals and not self.earlier:
            self._tell_of_tail()
        return setting if deals else None

    def _is_alone(self) -> bool:
        """True where all segments are on this server, without copies on others."""
        return all(segment.server is None and not segment.copies for segment in self.segments.values())

    def _tell_of_tail(self) -> None:
        """A NOTICE that pg_mop.tail has no effect on a call that asks for several devices, and why."""
        if not self._is_alone():
            why = "its rows are on several servers"
        elif self.inputs.use_gpus and self.servers[None].info["gpus"]:
            why = "its trainers are on GPUs"
        else:
            return
        self.db.notice(
            f'pg_mop.tail is "data-parallel", which has no effect on this run: {why}', hint="RESET pg_mop.tail;"
        )

    def _most_threads(self) -> int:
        """How many threads a trainer on this server may have: as many as there are cores, or as the role's limits allow."""
        most = self.limits["threads"]
        cores = self.servers[None].info["cores"]
        return cores if most is None else min(cores, most)

    def _threads(self) -> Threads:
        """How many threads the trainer of each command has."""
        options, planner = self.options, self.planner
        if self.followed is not None and (log := setup.logged_threads(planner, self.configurations.misfits)):
            return LoggedThreads(options["threads"], log)
        if not options["deal_threads"]:
            return Threads(options["threads"])
        if not self._is_alone():
            return ServerDealers(self.board, self._dealer_at)
        return Dealer(
            self.board,
            options["most_threads"],
            options["threads"],
            planner.unit_key,
            self.estimates(planner),
            options["tail"] == "data-parallel",
        )

    def _dealer_at(self, name: str | None) -> Dealer:
        """Deals the threads of the trainers on one of several servers."""
        board, cores, most = self.board, self.servers[name].info["cores"], self.limits["threads"]

        def among() -> list[int]:
            return [worker for worker in board.workers if board.server(worker) == name]

        def part() -> float:
            there = sum(board.server_of["training", segment] == name for segment in board.segments)
            return max(1, there) / len(board.segments)  # (a guest has copies alone)

        most = cores if most is None else min(cores, most)
        least = min(most, max(1, cores // max(1, len(among()))))
        return Dealer(
            board,
            most,
            least,
            self.planner.unit_key,
            self.estimates(self.planner, threads=least),
            among=among,
            part=part,
        )

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

    def packing_of(self, board: Board, planner: Planner | None = None) -> Packing:
        """The parts of devices that the trainers of a run's commands have. `planner`: of the board, if not the run's own."""
        return trainer_memory.packing(
            self.trainer_memory(planner),
            board,
            self.options,
            self.inputs.use_gpus,
            lambda server: self.servers[server].info if server in self.servers else {"gpus": 0},
        )

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

    # --- estimates ------------------------------------------------------------------------------------
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

    def elements(self, stage: Stage) -> int | None:
        """The number of weights of a stage's model; None: unknown."""
        found = self.arithmetic(stage.mst_key)
        return None if found is None or found.unknown else found.parameters

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

    def _begin_run(self) -> None:
        """Open a new run in the catalog, take over the stages that earlier runs have trained, and write the initial
        weights."""
        tables = self.spec.tables
        if self.earlier is not None:
            tables = {**tables, "replay_of": self.earlier.run_id}
        expected = prediction = found = None
        if self.spec.application is None:
            expected = self.planner.expected_seconds(self.wanted)
            if self.limits["max_seconds"] is not None:
                self.measure_machine()
            self._learn_fixed_costs(role_costs.FEW_LOGGED)
            adoption, stages = (
                Adoption(self.spec, self.planner, self.catalog, 0),
                list(self.planner.plan.stages.values()),
            )
            found = adoption.find(stages)
            taken = {stage.number for stage, *_ in found}
            taken.update(runs_beside.expected(adoption, stages))
            prediction = self._outline(taken)
            self.check_limits(taken)
        misfits = self.configurations.misfits
        self.run_id = self.servers[None].run_id = self.remote_runs.run_id = self._write_run(
            self.catalog,
            self.spec.function,
            [{**c, "error": misfits.get(c["mst_key"])} for c in self._noted()],
            {
                "arguments": self.spec.arguments,
                "settings": {**self.options, "seed": self.seed},
                "tables": tables,
                "search_path": self.db.callers_path,
            },
            expected,
            prediction,
        )
        if self.deadline is not None and prediction is not None:
            late = deadline.warning(self.deadline, prediction["seconds"], self.wanted)
            if late is not None:
                self.db.warning(late[0], detail=late[1], hint=late[2])
        self._copy_log()
        self.adoption = Adoption(self.spec, self.planner, self.catalog, self.run_id)
        self.adoption.elements = self.elements
        self.adoption.share()
        try:
            stages = list(self.planner.plan.stages.values())
            # (what others have trained is looked for again: only now the run may share with other roles)
            self.adoption.adopt(stages, None if self.catalog.shares is not None else found)
            self._start_paths()
        except MopError as error:  # before any work: nothing is left of the run
            self.catalog.close_run(self.run_id, *ending.outcome_of(error))
            self.catalog.drop_run(self.run_id)
            self.run_id = None
            raise

    def _copy_log(self) -> None:
        """Give a replay of a search the log that it follows, if the earlier coordinator has not done so."""
        if self.followed is not None and not self.catalog.search_log(self.run_id):
            self.catalog.log_search(self.run_id, 1, self.followed.events)

    def _open_remote_run(self, catalog: Any, leader: str) -> int:
        """Open a remote run in the catalog of another server: its number there."""
        return self._write_run(
            catalog,
            "remote_run",
            [{**c, "error": None, "weights_sql": None} for c in self._noted()],
            {"leader": leader, "run": self.run_id, "arguments": {}, "settings": {}},
            None,  # nobody looks at a remote run
            None,
        )

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

    def _noted(self) -> list[Configuration]:
        """The configurations as the catalog has them: each replica of averaging is one."""
        if self.spec.averaging:
            keys = range(1, sum(dataset == "training" for dataset, _ in self.segments) + 1)
            return [{**c, "mst_key": key} for key in keys for c in self.configurations]
        return list(self.configurations)

    def _start_paths(self) -> None:
        """Write the initial weights of paths, if the earlier coordinator has not done so. Raises MopError."""
        if orphans := self.planner.orphans():
            raise MopError(
                f"mst_key {orphans[0].mst_key} began with weights of another trial, and no state of its own is left",
                detail="A call that trains it alone can go on from its own state only.",
                hint="SET pg_mop.reuse = on; before the search keeps states, and lets later calls take them over. Or load the "
                "model's architecture and weights with load_keras_model, and train that.",
                sqlstate="55000",
            )
        begun = self.catalog.models(self.run_id)
        stages = self.planner.plan.stages.values()
        of = {
            key: c
            for c in self.configurations
            for key in (self.planner.replicas() if self.spec.averaging else [c["mst_key"]])
        }
        self.catalog.start(self.run_id, [stage for stage in stages if stage.number not in begun], of)
        if self.spec.application is not None:  # the model has been trained already
            for stage in stages:
                stage.trained = True

    # --- the executor ---------------------------------------------------------------------------------
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
            packing=self.packing,
        )

    def _digests_of(self, mst_key: int) -> Any:
        """Digests of the custom functions of a configuration, or of a replica of the only one."""
        return (self.configurations.get(mst_key) or self.configurations.first)["functions"]

    def _controller(self, messages: Messages) -> RunController:
        """The controller that decides which iterations are trained."""
        plan, catalog, run_id, search = self.planner.plan, self.catalog, self.run_id, self.spec.search

        def metrics_of(stages: list[int]) -> Any:
            return catalog.metrics(run_id, stages=stages)

        basics = plan, self.configurations, metrics_of, messages
        iterations: dict[str, Any] = {
            "num_iterations": self.inputs.num_iterations,
            "metrics_iterations": self.inputs.metrics_iterations,
        }
        if search is not None:
            self.procedure = search.procedure(self.seed, len(self.planner.workload.keys("training")))
        if self.followed is not None and not self.spec.averaging:
            return ReplayController(*basics, ends=self.followed.ends, best=self.followed.best, **iterations)
        if search is None:
            return FixedController(*basics, **iterations)
        events = catalog.search_log(run_id)
        if not events:  # (logged at once: a coordinator that resumes the run has both or none)
            known = [["known", search.known]] if search.known else []
            scores = [["scores", search.scores(self.procedure, self.seed)]] if search.scores is not None else []
            events = [*known, *scores]
            catalog.log_search(run_id, 1, events)
        return SearchController(
            *basics,
            procedure=self.procedure,
            search=search,
            began=self.inputs.began,
            num_iterations=self.inputs.num_iterations,
            events=events,
            log=lambda number, new: catalog.log_search(run_id, number, new),
            late_requests=lambda: catalog.control_requests(run_id, last=True),
            stopped_before=self.earlier.stopped if self.earlier is not None else (),
            seed=self.seed,
        )

    def _executor(self, sessions: Sessions) -> Executor:
        """The executor of the run, with its sessions open if there is anything to do."""
        planner, board = self.planner, self.board
        self.messages = Messages(self.spec, self.catalog, self.run_id, self._failures)
        self.controller = controller = self._controller(self.messages)
        self.adoption.controller = controller
        if not (board.done and controller.done):
            self._open_sessions(sessions)
            if board.anywhere:
                for worker, digest in sessions.compiled():
                    self.scheduler.affinity.setdefault((board.server(worker), planner.sharing.number(digest)), worker)
        # writing the output needs numpy: it is imported while the trainers start
        from pg_mop.backend.arrays import state  # noqa: F401

        self.executor = Executor(
            self.db,
            self.catalog,
            self.servers,
            sessions,
            self.run_id,
            planner.plan,
            board,
            self.scheduler,
            self.unit_specs,
            controller,
            self.adoption.adopt,
            self._extend,
            self.options,
            self.earlier.attempts if self.earlier is not None and self.resumes else {},
            self.wanted,
            self.remote_runs.take_back,
            self.remote_runs.away(),
            self._turns(),
            self.threads,
            self.adoption,
            self.remote_runs,
            self.packing,
            len(self.earlier.finished) if self.earlier is not None and self.resumes else 0,
        )
        return self.executor

    def _turns(self) -> Turns:
        """The run's turns on this server's cores. Only training takes turns, in trainers of this server."""
        cores, local = self.servers[None].info["cores"], sum(self.board.server(w) is None for w in self.board.workers)
        takes = local and self.engine.takes_turns and self.spec.application is None and self.options["trainers"] is None
        # (on several servers each has its own number of threads: see UnitSpecs.trainer)
        threads = min(cores, self.options["threads"] or max(1, cores // max(1, local)))
        answer: Answer = 0, False, 0
        left = self._left() if takes else None

        def ask(wanted: int, busy: int) -> Answer:
            nonlocal answer
            at = None if self.deadline is None else self.deadline.at
            try:
                answer = self.catalog.take_turn(
                    self.run_id, wanted, busy, cores, threads, self.options["priority"], at, left and left()
                )
            except psycopg2.Error as error:
                if error.pgcode != "55P03":  # somebody changes the priority: the last answer counts
                    raise
            return answer

        return Turns(ask if takes else None, threads, cores)

    def _left(self) -> Callable[[], float] | None:
        """Tells the seconds of training that are left of the run's prediction, if it were alone; None without a prediction."""
        found = self.catalog.prediction(self.run_id) or {}
        units, makespan = found.get("training_units"), found.get("makespan")
        if not units or makespan is None:
            return None
        before = sum(unit.kind == "train" for unit in self.earlier.finished) if self.earlier and self.resumes else 0

        def left() -> float:
            trained = before + (self.executor.trained if self.executor is not None else 0)
            return min(1e9, float(makespan * max(0.0, 1 - trained / units)))

        return left

    def _extend(
        self, c: Configuration, until: int, evaluated: Any, new: bool, shareable: Any
    ) -> tuple[list[Stage], list[tuple[int, Stage]]]:
        """Ask the planner for more iterations of a configuration, for a request of the controller."""
        if new:
            self.planner.register(c)
        early = self.spec.may_end_early(c)
        return self.planner.ask(c, until, evaluated, shareable=lambda stages, wanted: shareable(stages, wanted, early))

    def _failures(self) -> dict[int, str]:
        return {**(self.executor.failed if self.executor is not None else {}), **self.configurations.misfits}

    def _open_sessions(self, sessions: Sessions) -> None:
        """Open the worker sessions; go on with fewer if not all can be had and the others can do the work."""
        board, workers = self.board, list(self.board.workers)
        aggregate.session(self.db.plpy).give_back()  # a worker may need the trainer of the calling session
        refused = sessions.open(workers)
        if refused is not None:
            opened = [worker for worker in workers if worker in sessions.by_worker]
            if {board.server(worker) for worker in opened} < {board.server(worker) for worker in workers}:
                raise refused  # no other worker could train that server's segments
            board.serve(opened)
            self.db.warning(
                f"run {self.run_id} goes on with {len(opened)} of {len(workers)} worker sessions: {refused.message}",
                detail=refused.detail,
                hint=refused.hint,
            )

    # --- the end --------------------------------------------------------------------------------------
    def _finish(self, sessions: Sessions, executor: Executor, started: str) -> None:
        """All units are done: read the results on other servers, drop the remote runs, keep the costs, and
        end the sessions. Raises MopError if nothing could be trained."""
        spec, planner = self.spec, self.planner
        if spec.application is not None and spec.application.gather is not None:
            spec.application.gather(self.servers, self.segments)
        self.remote_runs.drop()
        self._note_costs()
        sessions.close()
        failed, stages = self._failures(), planner.plan.stages
        kept = {key: stages[stage].iteration for key, stage in self.controller.kept.items()}
        self.result = RunResult(spec, self.catalog, self.run_id, started, failed, kept)
        self.result.segments = len(planner.workload.keys("training"))
        self.result.replicas = planner.workload.rows if spec.averaging else []
        self.result.procedure = getattr(self, "procedure", None)
        failed = self.configurations.failures(failed)
        if spec.averaging and failed or len(failed) == len(self.configurations.own):
            raise MopError(spec.all_failed(failed), detail=listed(failed), sqlstate="22000")
        self.controller.finish()
        if self.followed is not None:
            self.messages.compare(self.followed, self.result.metrics, self.options)

    def _note_costs(self) -> None:
        """Keep the measured costs of nets for later runs, from the stages of each net that were trained last: by then, trainers
        have chosen their kernels."""
        by_net: dict[Any, list[Stage]] = {}
        executor = self.executor
        for number in sorted(executor.versions) if executor is not None else ():
            stage = self.planner.plan.stages[number]
            if executor is not None and executor.has_trained(stage):
                by_net.setdefault(self.planner.sharing.net(stage), []).append(stage)
        passes: dict[Any, dict[int, int]] = {}
        for net, stages in by_net.items():
            stages.sort(key=lambda stage: stage.iteration)
            late = stages[len(stages) // 2 :]
            passes[net] = {
                stage.number: epochs(stage.parameters[1]) for stage in late[:: len(late) // MEASURED_STAGES + 1]
            }
        try:
            self.catalog.note_costs(self.run_id, passes)
        except (MopError, psycopg2.Error) as trouble:  # the run does not depend on it
            self.db.plpy.log(f"pg_mop: the costs of run {self.run_id} could not be kept: {trouble}")

    def _failed(self, kind: Any, error: BaseException | None, _: Any) -> bool:
        """The run ends with an error: end its sessions and note why. The units that are committed stay."""
        if error is not None and self.run_id is not None:
            self._close_failed(error)
        if isinstance(error, psycopg2.Error):
            run = "the run" if self.run_id is None else f"run {self.run_id}"
            raise MopError(
                f"a session of {run} failed: {str(error).strip()}", sqlstate=error.pgcode or "08006"
            ) from None
        return False

    def _close_failed(self, error: BaseException) -> None:
        """End the sessions, and note why the run has ended."""
        stuck = self.sessions.abandon() if self.sessions is not None else []
        self._note_costs()
        self.remote_runs.close(*ending.outcome_of(error))
        try:
            self.catalog.terminate(stuck)
            self.catalog.close_run(self.run_id, *ending.outcome_of(error))
        except (MopError, psycopg2.Error) as trouble:  # the first error is the one to report
            self.db.plpy.log(f"pg_mop: run {self.run_id} could not be closed: {trouble}")
        if self.spec.application is not None:
            self.drop()

    def drop(self) -> None:
        """Leave nothing of the run."""
        try:
            self.catalog.drop_run(self.run_id)
        except (MopError, psycopg2.Error) as trouble:  # the next call that trains drops it
            self.db.plpy.log(f"pg_mop: run {self.run_id} is left behind: {trouble}")

    def output(self) -> contextlib.AbstractContextManager[None]:
        """Within it the caller writes the output tables. Then the run is finished; an error is noted in its row."""
        keeps = self.options["reuse"] and self.options["checkpoint_mb"] and not self.spec.averaging
        return ending.writing(self.result, bool(keeps), self.messages.late)
