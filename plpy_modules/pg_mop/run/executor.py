"""The event loop: gives every worker session that falls idle the scheduler's next unit, until the run is done."""

import json
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Protocol

import psycopg2

from mop_udf.aggregate import DEVICE_FULL
from pg_mop.backend import settings
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_literal
from pg_mop.call.servers import Server
from pg_mop.catalog import Catalog
from pg_mop.connections.sessions import CHECK_SECONDS, SessionLost, WorkerSession, message_of, wait
from pg_mop.connections.targets import Target
from pg_mop.plan.stages import Plan, Stage
from pg_mop.run.adoption import Adoption
from pg_mop.run.attempt import Action, Attempt, Copied, CopyFailed, Event, Finished, Policy, State, decide
from pg_mop.run.context import RunContext
from pg_mop.run.copies import StateCopies
from pg_mop.run.failover import Failover
from pg_mop.run.joining import Joining
from pg_mop.run.needed_states import NeededStates
from pg_mop.run.recovery import Recovery
from pg_mop.run.request_handler import RequestHandler
from pg_mop.run.requests import Steps
from pg_mop.run.runs_beside import RunsBeside
from pg_mop.run.sessions import Sessions
from pg_mop.run.states import States
from pg_mop.run.transfers import NotCarried, Transfers
from pg_mop.run.turns import Turns
from pg_mop.run.workers import Workers
from pg_mop.schedule.board import Board, Unit
from pg_mop.schedule.dealing import Threads
from pg_mop.schedule.packing import Packing, unpacked
from pg_mop.schedule.unit_batches import Steps as UnitSteps
from pg_mop.schedule.unit_batches import UnitBatches, units_of
from pg_mop.schedule.units_left import UnitsLeft

LOOK_SECONDS = 0.5  # between two looks at control requests, other servers and the number of sessions
COUNT_SECONDS = 1.0  # between two notes of what was counted
COUNT_SECONDS_ON_SEGMENTS = 10.0  # on Greenplum: a transaction takes longer, and mop_run_progress counts units
RECOUNT_SHARE = 0.005  # of the time at most goes into counting the stages that are left
RECOUNT_SECONDS = 60.0  # after which they are counted again even if nothing tells that the number is uncertain
GROWTH = 1000, 4  # ANALYZE at so many units or stages, then each time their number has grown so many times


class Controller(Protocol):
    """Decides, while the run goes on, which stages are asked for (run/controllers.py). Its methods are generators of
    requests (run/requests.py)."""

    @property
    def done(self) -> bool:
        """True if it will ask for nothing more by itself."""

    def begin(self) -> Steps:
        """The run begins, or goes on."""

    def ended(self, stages: list[Stage]) -> Steps:
        """Stages have been trained and, where that was wanted, evaluated."""

    def failed(self, mst_keys: Collection[int]) -> Steps:
        """Configurations have failed."""

    def control_requests(self, requests: list[dict[str, Any]]) -> Steps:
        """Do what people request. Returns True if something else has changed, too."""

    def keeps(self, mst_key: int) -> bool:
        """True where a configuration has a best state, which is written even if it can be trained no further."""


class Executor:
    """Runs a board's units on worker sessions.

    A unit on another server begins once the states that it reads have been carried there (run/transfers.py). Its commit
    there counts once it is registered in the coordinator's catalog. A commit that is not registered is asked for on its
    server, and registered late; otherwise the unit is done again (run/recovery.py).

    `servers`: {name: Server}, with the coordinator's own under None. `unit_specs`: see call/unit_specs.py.
    `adopt` and `extend`: see RequestHandler. `attempts`: {unit: attempts begun by earlier coordinators of the run}.
    `wanted`: how many sessions the run asked for. `take_back(name)` and `away`: see Failover. `turns`: of the workers on
    the coordinator's server. `threads`: of their trainers. `packing`: of all trainers on devices. `hosts`: the RemoteRuns, for
    servers that join.
    `done_before`: units that earlier coordinators of the run have finished.
    `adoption`: of a run that may wait for stages that other runs train (run/runs_beside.py).
    """

    def __init__(
        self,
        db: Any,
        catalog: Catalog,
        servers: dict[str | None, Server],
        sessions: Sessions,
        run_id: int,
        plan: Plan,
        board: Board,
        scheduler: Any,
        unit_specs: Any,
        controller: Controller,
        adopt: Callable[..., list[Stage]],
        extend: Callable[..., tuple[list[Stage], list[tuple[int, Stage]]]],
        options: dict[str, Any],
        attempts: dict[Unit, int],
        wanted: int,
        take_back: Callable[[str], None],
        away: dict[str, tuple[Target, str]],
        turns: Turns,
        threads: Threads,
        adoption: Adoption | None = None,
        hosts: Any = None,
        packing: Packing | None = None,
        done_before: int = 0,
    ) -> None:
        sharing = unit_specs.sharing
        states = States(servers, lambda stage: sharing.key(plan.stages[stage])[0])
        resume = f"SELECT {db.extension}.mop_resume({run_id});"
        policy = Policy(options["unit_retries"], options["server_timeout"] / 1000, resume)
        self.run = RunContext(db, catalog, run_id, servers, sessions, plan, board, unit_specs, states, policy)
        self.scheduler, self.controller, self.deals = scheduler, controller, options.get("deal_threads")
        self.begun_before, self.turns, self.threads = attempts, turns, threads
        self.done_before = done_before
        self.packing = packing or unpacked(board)
        # bytes of states to keep for later runs
        self.needed = NeededStates(self.run, options["checkpoint_mb"] << 20 if options["reuse"] else 0)
        self.unit_batches = UnitBatches(
            board,
            scheduler,
            lambda stage: (sharing.key(plan.stages[stage]), plan.stages[stage].parameters[1]),
            states.bytes,
            options["chain_seconds"],
            self._passes_on,
            unit_specs.may_chain,
            lambda unit: (threads.logged(unit), self.packing.kind(unit.stage), self.packing.shared_by(unit)),
            self._may_begin,
        )
        self.transfers = Transfers(self.run, self.needed, scheduler, lambda: self.workers.check_servers())
        self.workers = Workers(
            self.run, self.transfers, wanted, lambda server, why: self.failover.do_without(server, why)
        )
        self.failover = Failover(self.run, options["replicas"] > 1, take_back, away, self._leave, self.workers.resize)
        self.recovery = Recovery(
            self.run,
            self.needed,
            self.workers,
            self.failover,
            self._settle,
            self._give_up,
            self.packing.fewer,
            self.packing.divided.more,
        )
        self.copies = StateCopies(self.run, self._settle_copy, self.failover.can_do_without)
        self.joining = Joining(self.run, hosts, self.failover.enabled, self.workers, self.failover.given_up)
        self.requests = RequestHandler(
            self.run,
            self.needed,
            self.failover,
            adopt,
            extend,
            self.joining.invite,
            self.transfers.bring_home,
            self._tell_planner,
        )
        self.beside = None
        if adoption is not None:
            self.beside = RunsBeside(self.run, adoption, self.needed, self.requests.take_over)
            self.requests.beside = self.beside
        self.looked = self.counted = time.monotonic()
        self.noted: Any = None  # what the catalog has of the counts
        self.left = UnitsLeft(board)
        self.recounts_at = time.monotonic()  # or later: when the units that are left are counted again
        self.trained = 0  # units
        self.done = 0  # units that have ended
        self.told = 0, 0  # units and stages that the planner has been told of
        self.began = time.time()
        self.ready_since: dict[int, float] = {}  # stage -> when its next unit could have begun first (time.time)

    def go(self) -> None:
        """Run until nothing is left to do. Raises MopError where the whole run cannot go on."""
        run, stages = self.run, self.run.plan.stages
        if self.failover.enabled:
            if self.begun_before:  # an earlier coordinator may have copied states that did not count yet
                run.states.begin_anew()
            self.failover.begin(len(self.needed.lost()) if self.failover.away else 0)
            self.transfers.bring_home([stages[number] for number in run.states.stages()])
        self._tell_planner()
        if self.beside is not None:
            self.beside.hold(stages.values())
        self.requests.perform(self.controller.begin())
        self.needed.release(stages[number] for number in run.states.stages())  # of an earlier coordinator
        self._dispatch()
        while self._is_wanted():
            busy = (
                [s.relay or s for s in run.sessions.by_worker.values() if s.work] + self.copies.busy + self.joining.busy
            )
            resting = run.attempts_in(State.RESTING, State.UNKNOWN) or self.workers.away or self.copies.resting
            if not (busy or resting or self.turns.waits or run.board.held):
                raise RuntimeError("the scheduler leaves every session idle although units remain")
            answers = wait(busy, run.sessions.check_interrupts, self.turns.patience or CHECK_SECONDS)
            if ended := self._ended(answers):
                self.requests.perform(self.controller.ended(ended))
            # (an idle loop must not dispatch, or random choices would depend on timing)
            changed = self.recovery.wake() + self._look() + self.workers.come_back() + len(answers)
            if self.turns.look(*self._local_cores()) or changed:
                self._dispatch()
                self._tell_planner()  # while the sessions work
        self.joining.abandon()
        self._bring_results_home()

    def _ended(self, answers: list[tuple[WorkerSession, Exception | None]]) -> list[Stage]:
        """Sessions have ended their commands: the stages that have ended by that."""
        ended = []
        for session, error in answers:
            if session in self.copies.relays:
                ended += self.copies.ended(session, error)
                continue
            if session in self.joining.busy:
                self.joining.ended(session, error)
                continue
            if (served := session.serves) is not None:  # a relay
                if served.relay is not session:
                    continue
                session, error = served, self._carried(served, error)
                if error is None:
                    continue
            work, session.work = session.work, []
            if work:  # (else its server has been given up since)
                ended += self._committed(session, work) if error is None else self._failed(session, work, error)
        return ended

    def _is_wanted(self) -> bool:
        """False once everything is done, and no control request has come since the last look. (A run that had nothing
        to do has no sessions, and takes no requests.)"""
        while self.run.board.done and self.controller.done:
            requests = (
                self.run.catalog.control_requests(self.run.run_id, last=True) if self.run.sessions.by_worker else []
            )
            if not requests:
                return False
            self.requests.perform(self.controller.control_requests(requests))
            self._dispatch()
        return True

    # --- results ------------------------------------------------------------------------------------
    @property
    def failed(self) -> dict[int, str]:
        """{mst_key: why the configuration failed}."""
        return self.requests.failed

    @property
    def versions(self) -> dict[int, int]:
        """{stage that has been trained or starts from weights: version of its state}."""
        return self.needed.versions

    def has_trained(self, stage: Stage) -> bool:
        """True where this run has trained the stage on a segment at least."""
        return self.needed.has_trained(stage)

    # --- dispatch -----------------------------------------------------------------------------------
    def _dispatch(self) -> None:
        """Let idle workers begin units."""
        run, before = self.run, None
        while before != set(run.servers):  # (a server that turns out to be away leaves its units to others)
            before = set(run.servers)
            self.workers.let_go()
            idle = [
                worker
                for worker, session in run.sessions.by_worker.items()
                if not session.work and worker in run.board.workers
            ]
            allowed = self.turns.begin(*self._local_cores())
            for worker in self.scheduler.arrange(idle):
                session, local = run.sessions.by_worker.get(worker), run.board.server(worker) is None
                if session is None or session.work or local and allowed < self.turns.threads:
                    continue
                if steps := self.unit_batches.choose(worker):
                    threads = self._threads(worker, units_of(steps)[0])
                    allowed -= local * (threads or self.turns.threads)
                    self._start(session, steps, threads)
            self.turns.settle(self._local_cores()[0])

    def _local_cores(self) -> tuple[int, int]:
        """How many cores of the coordinator's server the commands of workers use, and how many workers there have none."""
        board, busy, idle = self.run.board, 0, 0
        for worker, session in self.run.sessions.by_worker.items():
            if worker in board.workers and board.server(worker) is None:
                if session.work:
                    busy += self.threads.of(worker) or self.turns.threads
                else:
                    idle += 1
        return busy, idle

    def _threads(self, worker: int, unit: Unit) -> int | None:
        """The threads of a worker's trainer, for a command that begins with a unit."""
        return self.threads.begin(worker, unit, self._working(), lambda cores: self._may_grow(worker, cores))

    def _may_begin(self, worker: int, unit: Unit | None) -> bool:
        """Whether a worker's command may begin now with a unit: its part of the device is free, and so are cores for as many
        threads as the unit had in the run that is repeated. (None: the worker has no unit.)"""
        logged = None if unit is None or self.run.board.server(worker) is not None else self.threads.logged(unit)
        if (
            logged is not None
            and logged > self.turns.threads
            and not self.turns.may_have(self._local_cores()[0], logged)
        ):
            return False
        return self.packing.may_begin(worker, unit, self._working())

    def _working(self) -> list[int]:
        """The workers with commands."""
        return [worker for worker, session in self.run.sessions.by_worker.items() if session.work]

    def _make_room(self, worker: int, unit: Unit) -> int:
        """Let idle workers give their trainers back that hold memory which a worker's command needs. Returns how many parts its
        device has."""
        for other in self.packing.begin(worker, unit, self._working()):
            session = self.run.sessions.by_worker.get(other)
            if session is not None and not self.run.sessions.leave_trainer(session):
                self.requests.perform(self.controller.ended(self._failed(session, [], SessionLost("it was lost"))))
        return self.packing.of(worker)

    def _may_grow(self, worker: int, cores: int) -> bool:
        """Whether commands may use so many cores of a worker's server, with its next one."""
        server = self.run.sessions.server(worker)
        if not server.home:
            return self._may_grow_at(server, worker, cores)
        busy = self._local_cores()[0]
        if not self.turns.grow(busy, cores):
            return False
        more = cores - busy
        if self.deals == "on" or more <= (self.threads.of(worker) or self.turns.threads):
            return True
        return settings.runnable_threads() + more <= self.turns.cores

    def _may_grow_at(self, server: Server, worker: int, cores: int) -> bool:
        """As _may_grow, of another server: there no run takes turns, and other programs are asked for where that matters."""
        board = self.run.board
        busy = sum(self.threads.of(w) or 0 for w in self._working() if board.server(w) == server.name and w != worker)
        if self.deals == "on" or cores - busy <= (self.threads.of(worker) or 0):
            return True
        try:
            computing: int = server.catalog.execute(f"SELECT {server.schema}.mop_server_info() ->> 'computing' AS n")[
                0
            ]["n"]
        except (psycopg2.Error, MopError):  # it is away: the command will tell
            return False
        return int(computing) + cores - busy <= server.info["cores"]

    def _passes_on(self, stage: Stage, child: Stage) -> bool:
        """True where a chain may train a stage's child after it, and leave the state between them out."""
        specs = self.run.unit_specs
        return self.needed.passes_on(stage, child) and (
            specs.functions_of(stage.number) == specs.functions_of(child.number)
        )

    def _start(self, session: WorkerSession, steps: UnitSteps, threads: int | None) -> None:
        """Begin attempts at units that go as one command, or carry their states first. `threads`: of the trainer."""
        units = units_of(steps[:1])
        parts = self._make_room(session.worker, units[0])
        server = self.run.sessions.server(session.worker)
        moves = self.transfers.moves(units, server.name)
        attempts = [
            [None if unit is None else self._attempt(unit, server.name, steps) for unit in step] for step in steps
        ]
        work = [attempt for step in attempts for attempt in step if attempt is not None]
        command = {
            **self.run.unit_specs.describe(steps, session.worker, threads, parts),
            "run_id": server.run_id,
            "fencing_token": server.catalog.fencing_token,
            "kind": units[0].kind,
            "dataset": units[0].dataset,
            "segment": units[0].segment,
        }
        models = self._models(attempts)
        command["coming"] = self.transfers.read_ahead(session.worker)
        for step, told in zip((command, *command.get("then", ())), models, strict=True):
            step["models"] = [more and {**model, **more} for model, more in zip(told, step["models"], strict=True)]
        session.work = work
        for attempt in work:
            attempt.begun, attempt.neighbours = time.monotonic(), parts
            attempt.more_devices = self.packing.more_devices(session.worker)
            attempt.why_one_device = self.run.unit_specs.why_one_device(session.worker)
        try:
            rows = [attempt.row for attempt in work]
            begin = server.catalog.begin_units_sql(server.run_id, rows)
            session.command = (
                f"BEGIN; {begin}; COMMIT; "
                f"BEGIN; SELECT {server.schema}.mop_run_unit({quote_literal(json.dumps(command))}); COMMIT"
            )
            if not server.home:
                session.command += "; " + server.catalog.reports_sql(server.run_id, [attempt.unit for attempt in work])
                self.run.catalog.begin_units(self.run.run_id, rows, server.name)
            if moves:
                self.transfers.carry(session, moves)
            else:
                self._begin(session)
        except (SessionLost, NotCarried, psycopg2.OperationalError, MopError) as error:
            session.work = []
            failure: Exception = error
            if getattr(error, "sqlstate", None) == "08001":  # its server refuses every connection
                failure = SessionLost(message_of(error))
            elif not isinstance(error, SessionLost):
                failure = NotCarried(message_of(error))
            self.requests.perform(self.controller.ended(self._failed(session, work, failure)))

    def _attempt(self, unit: Unit, server: str | None, steps: UnitSteps) -> Attempt:
        """The next attempt at a unit, on a server, in a command with these steps."""
        before = self.run.attempts.get(unit)
        attempt = before.next() if before else Attempt(unit, self.begun_before.get(unit, 0) + 1)
        self.run.counts.retried += attempt.number > 1
        attempt.state, attempt.server = State.PREPARING, server
        attempt.chain = len(steps) > 1
        attempt.batch = len(units_of(steps)) > 1
        attempt.row = {
            "run_id": self.run.run_id,
            "stage": unit.stage,
            "iteration": unit.iteration,
            "segment": unit.segment,
            "kind": unit.kind,
            "dataset": unit.dataset,
            "attempt": attempt.number,
            "queued_at": self.ready_since.get(unit.stage, self.began),
        }
        self.run.attempts[unit] = attempt
        return attempt

    def _models(self, steps: list[list[Attempt | None]]) -> list[list[dict[str, Any]]]:
        """The parts of a command that tell of the attempts' models (see run/unit.py), for each step. Element i of each step
        is of the same model, which only its last attempt writes."""
        versions: dict[int, int] = {}  # stage -> its version in the chain
        last: list[Attempt | None] = [None] * len(steps[0])
        models: list[list[Attempt]] = [[] for _ in steps[0]]
        for step in steps:
            for place, attempt in enumerate(step):
                if attempt is None:
                    continue
                before, last[place] = last[place], attempt
                attempt.model = models[place]
                attempt.model.append(attempt)
                attempt.begins = attempt.unit.stage not in versions
                versions[attempt.unit.stage] = 0
                attempt.released = before.released if before else []
                if attempt.unit.kind == "train" and attempt.begins:
                    attempt.released = attempt.released + self.needed.begin(attempt.unit, before is not None)
        versions.clear()
        told: list[list[dict[str, Any]]] = []
        for step in steps:
            told.append([])
            for attempt in step:
                if attempt is None:
                    told[-1].append({})
                    continue
                unit = attempt.unit
                attempt.writes = unit.kind == "train" and attempt in last
                version = versions.get(unit.stage, self.needed.version(unit.stage))
                versions[unit.stage] = attempt.version = version + 1
                told[-1].append(
                    {
                        "stage": unit.stage,
                        "iteration": unit.iteration,
                        "attempt": attempt.number,
                        "version": version,
                        "release": attempt.released if attempt.writes else [],
                        "state_table": self.run.states.begin(unit.stage, attempt.server) if attempt.writes else None,
                    }
                )
        return told

    def _begin(self, session: WorkerSession) -> None:
        """Let the session do its work. Raises SessionLost, and psycopg2.Error where its server does not answer."""
        run, server = self.run, self.run.sessions.server(session.worker)
        for attempt in session.work if not server.home else ():
            unit = attempt.unit
            if unit.kind == "evaluate" and not run.plan.stages[unit.stage].failed and run.board.is_last(unit):
                sums = run.catalog.partials(run.run_id, unit.stage, unit.dataset)
                if sums is not None:
                    server.catalog.put_partials(server.run_id, unit.stage, unit.dataset, sums)
        session.begin(session.clean_sql() + session.command)
        for attempt in session.work:
            attempt.state, attempt.waiting_since = State.RUNNING, None

    def _carried(self, session: WorkerSession, error: Exception | None) -> Exception | None:
        """A session's relay has ended: let the session begin its work. The error that its units meet, or None."""
        error = self.transfers.arrived(session, error)
        if error is not None:
            return error
        try:
            self._begin(session)
        except SessionLost as trouble:
            return trouble
        except (psycopg2.Error, MopError) as trouble:
            return NotCarried(message_of(trouble))
        return None

    # --- commits and failures -----------------------------------------------------------------------
    def _committed(self, session: WorkerSession, work: list[Attempt]) -> list[Stage]:
        """A session has committed attempts: the stages that have ended by that."""
        server, ended = self.run.sessions.server(session.worker), []
        reports: list[Any] = [None] * len(work)
        if not server.home:
            try:
                reports = session.rows()[0][0]  # they come with the answer
                if not all(reports):
                    raise MopError(f"server {server.name} has committed a unit that it does not report")
            except (psycopg2.Error, MopError) as error:
                session.close()
                return self._failed(session, work, SessionLost(message_of(error)))
            if not self.failover.enabled:  # (else a training unit counts when its state has been copied)
                self.run.catalog.register(self.run.run_id, server.name, *reports)
        for attempt in work:
            attempt.seconds = (time.monotonic() - attempt.begun) / len(work)
            self.threads.finished(session.worker, attempt.unit, attempt.seconds)
        for attempt, report in zip(work, reports):
            if attempt.server in self.run.servers:  # (else it was given up meanwhile)
                ended += self._settle(attempt, report, not self.failover.enabled)
        return ended

    def _settle(self, attempt: Attempt, report: Any, registered: bool = False) -> list[Stage]:
        """An attempt has been committed, with another server's report or none: it counts once it is registered and,
        where states have copies, copied. The stages that have ended by it."""
        to_copy = bool(report) and self.failover.enabled and attempt.unit.kind == "train"
        decision = decide(attempt, Finished(to_copy), self.run.policy)
        attempt.report = report
        attempt.apply(decision, time.monotonic())
        if decision.action is Action.COPY:
            if all(other.state is State.COPYING for other in attempt.model):  # (of a chain: its last state serves all)
                self.copies.make(attempt.model[-1])
            return []
        if report and not registered:
            self.run.catalog.register(self.run.run_id, attempt.server, report)
        return self._mark_done(attempt)

    def _settle_copy(self, attempt: Attempt, event: Event) -> list[Stage]:
        """An attempt's state has been copied, or could not be: the stages that have ended by it. With the last attempt of a
        chain, those before it count."""
        if isinstance(event, CopyFailed):
            self.recovery.copy_failed(attempt, event)
            return []
        assert isinstance(event, Copied)
        ended: list[Stage] = []
        for each in attempt.model:
            each.apply(decide(each, event, self.run.policy), time.monotonic())
            ended += self._mark_done(each, copied=True)
        return ended

    def _mark_done(self, attempt: Attempt, copied: bool = False) -> list[Stage]:
        """A unit counts now, and its attempt is done; `copied`: the coordinator's server has its state, too. The stages
        that have ended by it."""
        run, unit = self.run, attempt.unit
        del run.attempts[unit]
        self.done += 1
        run.counts.finished += 1
        self.trained += unit.kind == "train"
        self.ready_since[unit.stage] = time.time()
        if unit.kind == "train":
            self.needed.trained(unit)
            if attempt.writes:
                run.states.finished(unit.stage, attempt.server, attempt.released, self.transfers.is_movable, copied)
                # (of a chain, also the stages that it has passed on; where children began side by side, each left the
                # release to the others)
                stages = run.plan.stages
                self.needed.need_no_parent([stages[number] for number in (*attempt.released, unit.stage)])
        self.left.finishes(unit)
        ended = run.board.finish(unit)
        if unit.kind == "train" and run.board.shares_states:
            self.needed.release_replicas(unit.iteration)
        for stage in ended:
            for child in stage.children:
                self.ready_since[child.number] = time.time()
        if attempt.seconds is not None:
            self.unit_batches.finished(unit, attempt.seconds)
        return ended

    def _failed(self, session: WorkerSession, work: list[Attempt], error: Exception) -> list[Stage]:
        """A session's command has failed: the stages that have ended after all."""
        if getattr(error, "pgcode", None) == DEVICE_FULL:  # no unit is to blame
            self.packing.full(session.worker)
        elif len(work) > 1:  # one unit may be to blame: from now on each is done alone
            self.unit_batches.single |= {attempt.unit for attempt in work}
        return self.recovery.failed(session.worker, work, error)

    def _give_up(self, attempt: Attempt, message: str, blame: str) -> None:
        """The unit's stage cannot be trained: all configurations that need it have failed, but for those that keep an earlier
        state as their best one. These have stopped after the iteration before."""
        unit = attempt.unit
        message = f"{unit.kind} unit of iteration {unit.iteration} on segment {unit.segment}: {message}"
        keys = self.run.board.fail(unit.stage)
        if blame == "configuration":  # (otherwise mop_resume may try again)
            self.needed.need_no_parent([self.run.plan.stages[unit.stage]])
            saved = {key for key in keys if self.controller.keeps(key)}
            for key in sorted(saved):
                self.requests.save(key, message, unit.iteration - 1)
        else:
            saved = set()
        self.requests.give_up(keys - saved, message, blame)
        self.requests.perform(self.controller.failed(keys))

    # --- looking around -----------------------------------------------------------------------------
    def _look(self) -> bool:
        """Look at other servers, control requests, and the number of sessions (mop_set_sessions). True where anything
        may have changed."""
        if time.monotonic() - self.looked < LOOK_SECONDS:
            return False
        self.looked, run = time.monotonic(), self.run
        before = set(run.servers), len(run.attempts_in(State.UNKNOWN))
        self.workers.check_servers()
        if ended := self.recovery.find_out():
            self.requests.perform(self.controller.ended(ended))
        taken = False
        if self.beside is not None:
            ended, taken = self.beside.look()
            if ended:
                self.requests.perform(self.controller.ended(ended))
        self.copies.look()
        self.joining.look()
        self.failover.look()
        self.transfers.hurry()
        requests = run.catalog.control_requests(run.run_id)
        changed = (
            taken
            or bool(self.requests.perform(self.controller.control_requests(requests)) or requests)
            or before != (set(run.servers), len(run.attempts_in(State.UNKNOWN)))
        )
        self._note_counts()
        wanted = run.catalog.wanted_sessions(run.run_id)
        if wanted != self.workers.wanted:
            self.workers.wanted, changed = wanted, True
            self.workers.resize()
        return changed

    def _note_counts(self) -> None:
        """Tell those who watch what was counted, once in a while. (The end of the run counts its whole log.)"""
        run, now = self.run, time.monotonic()
        if now - self.counted < (COUNT_SECONDS_ON_SEGMENTS if run.db.has_segments else COUNT_SECONDS):
            return
        if now >= self.recounts_at + (0.0 if self.left.uncertain else RECOUNT_SECONDS):
            self.left.recount()
            self.recounts_at = time.monotonic() + (time.monotonic() - now) / RECOUNT_SHARE
        told = replace(run.counts), self.left.count
        if told != self.noted:
            self.counted, self.noted = now, told
            run.catalog.note_counts(
                run.run_id,
                run.counts.finished,
                run.counts.failed,
                run.counts.retried,
                run.counts.sent_bytes,
                self.done_before + self.done,
                max(0, self.left.count),
            )

    def _leave(self, name: str, why: str) -> None:
        """A server is given up: no session works there any more, and its units are to be done on others."""
        self.copies.leave(name)
        self.workers.leave(name)
        self.recovery.undo(name, why)

    def _bring_results_home(self) -> None:
        """All is done: the states that configurations end with come to the coordinator's server."""
        if len(self.run.servers) > 1:
            self.transfers.bring_home(
                stage
                for stage in self.run.plan.stages.values()
                if stage.trained and (stage.ends or self.needed.pinned[stage.number])
            )

    def _tell_planner(self) -> None:
        """Update the statistics of PostgreSQL's planner, if the run has grown much: for the units, and for people who watch."""
        grown = self.done, len(self.run.plan.stages)
        if not any(now >= max(GROWTH[0], GROWTH[1] * told) for now, told in zip(grown, self.told)):
            return
        self.told = grown
        try:
            self.run.catalog.note_growth(self.run.run_id)
        except psycopg2.Error as error:  # the run is no worse for it
            self.run.db.log(f"the planner was not told of run {self.run.run_id}: {error}")
