"""The event loop: gives every worker session that falls idle the scheduler's next unit, until the run is done."""

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Protocol

import psycopg2

from mop_udf.aggregate import DEVICE_FULL
from pg_mop.backend.errors import MopError
from pg_mop.connections.sessions import CHECK_SECONDS, SessionLost, WorkerSession, message_of, wait
from pg_mop.plan.stages import Stage
from pg_mop.run import cores
from pg_mop.run.adoption import Adoption
from pg_mop.run.attempt import Action, Attempt, Copied, CopyFailed, Finished, State, decide
from pg_mop.run.commands import attempts_at, command_of, sql_of
from pg_mop.run.copies import StateCopies
from pg_mop.run.failover import Failover
from pg_mop.run.instructions import (
    CheckServers,
    Count,
    CountCopied,
    FailStage,
    GiveServerUp,
    Instruction,
    Instructions,
    Invite,
    LeaveServer,
    perform,
)
from pg_mop.run.joining import Joining
from pg_mop.run.paths import Paths
from pg_mop.run.recovery import Recovery
from pg_mop.run.run import Run
from pg_mop.run.runs_beside import RunsBeside
from pg_mop.run.transfers import NotCarried, Transfers
from pg_mop.run.workers import Workers
from pg_mop.schedule.board import Unit
from pg_mop.schedule.unit_batches import CommandSteps, UnitBatches, units_of
from pg_mop.schedule.units_left import UnitsLeft

LOOK_SECONDS = 0.5  # between two looks at control requests, other servers and the number of sessions
COUNT_SECONDS = 1.0  # between two notes of what was counted
COUNT_SECONDS_ON_SEGMENTS = 10.0  # on Greenplum: a transaction takes longer, and mop_run_progress counts units
RECOUNT_SHARE = 0.005  # of the time at most goes into counting the stages that are left
RECOUNT_SECONDS = 60.0  # after which they are counted again even if nothing tells that the number is uncertain
GROWTH = 1000, 4  # ANALYZE at so many units or stages, then each time their number has grown so many times


class Controller(Protocol):
    """Decides, while the run goes on, which stages are asked for (run/controllers.py). Its methods are generators of
    instructions (run/instructions.py)."""

    @property
    def done(self) -> bool:
        """True if it will ask for nothing more by itself."""

    def begin(self) -> Instructions:
        """The run begins, or goes on."""

    def ended(self, stages: list[Stage]) -> Instructions:
        """Stages have been trained and, where that was wanted, evaluated."""

    def failed(self, mst_keys: Collection[int]) -> Instructions:
        """Configurations have failed."""

    def control_requests(self, requests: list[dict[str, Any]]) -> Instructions:
        """Do what people request. Returns True if something else has changed, too."""

    def keeps(self, mst_key: int) -> bool:
        """True where a configuration has a best state, which is written even if it can be trained no further."""


class Executor:
    """Runs a board's units on worker sessions: one loop, which performs what the parts decide.

    A unit on another server begins once the states that it reads have been carried there (run/transfers.py). Its commit
    there counts once it is registered in the coordinator's catalog. A commit that is not registered is asked for on its
    server, and registered late; otherwise the unit is done again (run/recovery.py).

    The parts know the run, and no part that is above them: where one needs another to act, it yields an instruction
    (run/instructions.py).
    """

    def __init__(self, run: Run, controller: Controller, adoption: Adoption, remote_runs: Any) -> None:
        """`adoption`: of stages that other runs have trained or train now; `remote_runs`: the RemoteRuns, for servers that
        come back or join."""
        self.run, self.controller = run, controller
        sharing, stages = run.unit_specs.sharing, run.plan.stages
        self.unit_batches = UnitBatches(
            run.board,
            run.scheduler,
            lambda stage: (sharing.key(stages[stage]), stages[stage].parameters[1]),
            run.states.bytes,
            run.options["chain_seconds"],
            self._passes_on,
            run.unit_specs.may_chain,
            lambda unit: (
                run.threads.logged(unit),
                run.device_parts.kind(unit.stage),
                run.device_parts.shared_by(unit),
            ),
            lambda worker, unit: cores.may_begin(run, worker, unit),
        )
        self.transfers = Transfers(run)
        self.workers = Workers(run)
        self.failover = Failover(run, self.workers, remote_runs)
        self.recovery = Recovery(run, self.workers)
        self.copies = StateCopies(run)
        self.joining = Joining(run, self.workers, remote_runs)
        self.beside = RunsBeside(run, adoption)
        self.paths = Paths(run, adoption, self.transfers, self.beside)
        self.looked = self.counted = time.monotonic()
        self.noted: Any = None  # what the catalog has of the counts
        self.left = UnitsLeft(run.board)
        self.recounts_at = time.monotonic()  # or later: when the units that are left are counted again
        self.told = 0, 0  # units and stages that the planner has been told of

    # --- instructions -------------------------------------------------------------------------------
    def perform(self, instructions: Instructions) -> Any:
        """Carry out the instructions of a generator, and return its result."""
        return perform(instructions, self._do)

    def _do(self, instruction: Instruction) -> Any:
        """Carry out an instruction. Returns its answer (run/instructions.py)."""
        match instruction:
            case CheckServers():
                return self.perform(self.workers.check_servers())
            case GiveServerUp(name, why):
                return self.perform(self.failover.give_up(name, why))
            case LeaveServer(name, why):
                return self._leave(name, why)
            case Count(attempt, report):
                return self._count(attempt, report)
            case CountCopied(attempt, event):
                return self._count_copied(attempt, event)
            case FailStage(attempt, message, blame):
                return self._fail_stage(attempt, message, blame)
            case Invite(server, by):
                return self.joining.invite(server, by)
        answer = self.perform(self.paths.do(instruction))
        self._tell_planner()
        return answer

    def go(self) -> None:
        """Run until nothing is left to do. Raises MopError where the whole run cannot go on."""
        run, stages = self.run, self.run.plan.stages
        if run.replicated:
            if run.begun_before:  # an earlier coordinator may have copied states that did not count yet
                run.states.begin_anew()
            self.failover.begin()
            self.perform(self.transfers.bring_home([stages[number] for number in run.states.stages()]))
        self._tell_planner()
        self.beside.hold(stages.values())
        self.perform(self.controller.begin())
        run.needed.release(stages[number] for number in run.states.stages())  # of an earlier coordinator
        self._dispatch()
        while self._is_wanted():
            busy = (
                [s.relay or s for s in run.sessions.by_worker.values() if s.work] + self.copies.busy + self.joining.busy
            )
            resting = run.attempts_in(State.RESTING, State.UNKNOWN) or self.workers.away or self.copies.resting
            if not (busy or resting or run.turns.waits or run.board.held):
                raise RuntimeError("the scheduler leaves every session idle although units remain")
            answers = wait(busy, run.sessions.check_interrupts, run.turns.patience or CHECK_SECONDS)
            if ended := self._ended(answers):
                self.perform(self.controller.ended(ended))
            # (an idle loop must not dispatch, or random choices would depend on timing)
            changed = self.recovery.wake() + self._look() + self.perform(self.workers.come_back()) + len(answers)
            if run.turns.look(*cores.local_cores(run)) or changed:
                self._dispatch()
                self._tell_planner()  # while the sessions work
        self.joining.abandon()
        self._bring_results_home()

    def _ended(self, answers: list[tuple[WorkerSession, Exception | None]]) -> list[Stage]:
        """Sessions have ended their commands: the stages that have ended by that."""
        ended = []
        for session, error in answers:
            if session in self.copies.relays:
                ended += self.perform(self.copies.ended(session, error))
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
            self.perform(self.controller.control_requests(requests))
            self._dispatch()
        return True

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
            allowed = run.turns.begin(*cores.local_cores(run))
            for worker in run.scheduler.arrange(idle):
                session, local = run.sessions.by_worker.get(worker), run.board.server(worker) is None
                if session is None or session.work or local and allowed < run.turns.threads:
                    continue
                if steps := self.unit_batches.choose(worker):
                    threads = cores.threads(run, worker, units_of(steps)[0])
                    allowed -= local * (threads or run.turns.threads)
                    self._start(session, steps, threads)
            run.turns.settle(cores.local_cores(run)[0])

    def _make_room(self, worker: int, unit: Unit) -> int:
        """Let idle workers give their trainers back that hold memory which a worker's command needs. Returns how many parts its
        device has."""
        run = self.run
        for other in run.device_parts.begin(worker, unit, run.working):
            session = run.sessions.by_worker.get(other)
            if session is not None and not run.sessions.leave_trainer(session):
                self.perform(self.controller.ended(self._failed(session, [], SessionLost("it was lost"))))
        return run.device_parts.of(worker)

    def _passes_on(self, stage: Stage, child: Stage) -> bool:
        """True where a chain may train a stage's child after it, and leave the state between them out."""
        specs = self.run.unit_specs
        return self.run.needed.passes_on(stage, child) and (
            specs.functions_of(stage.number) == specs.functions_of(child.number)
        )

    def _start(self, session: WorkerSession, steps: CommandSteps, threads: int | None) -> None:
        """Begin attempts at units that go as one command, or carry their states first. `threads`: of the trainer."""
        run, worker = self.run, session.worker
        units = units_of(steps[:1])
        parts = self._make_room(worker, units[0])
        server = run.sessions.server(worker)
        moves = self.transfers.moves(units, server.name)
        attempts = attempts_at(run, steps, server.name)
        work = [attempt for step in attempts for attempt in step if attempt is not None]
        command = command_of(run, server, worker, steps, attempts, threads, parts)
        command.coming = self.transfers.read_ahead(worker)
        session.work = work
        for attempt in work:
            attempt.begun, attempt.neighbours = time.monotonic(), parts
            attempt.more_devices = run.device_parts.more_devices(worker)
            attempt.why_one_device = run.unit_specs.why_one_device(worker)
        try:
            rows = [attempt.row for attempt in work]
            session.command = sql_of(server, rows, [attempt.unit for attempt in work], command)
            if not server.home:
                run.catalog.begin_units(run.run_id, rows, server.name)
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
            self.perform(self.controller.ended(self._failed(session, work, failure)))

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
            if not self.run.replicated:  # (else a training unit counts when its state has been copied)
                self.run.catalog.register(self.run.run_id, server.name, *reports)
        for attempt in work:
            attempt.seconds = (time.monotonic() - attempt.begun) / len(work)
            self.run.threads.finished(session.worker, attempt.unit, attempt.seconds)
        for attempt, report in zip(work, reports):
            if attempt.server in self.run.servers:  # (else it was given up meanwhile)
                ended += self._count(attempt, report, not self.run.replicated)
        return ended

    def _count(self, attempt: Attempt, report: Any, registered: bool = False) -> list[Stage]:
        """An attempt has been committed, with another server's report or none: it counts once it is registered and,
        where states have copies, copied. The stages that have ended by it."""
        to_copy = bool(report) and self.run.replicated and attempt.unit.kind == "train"
        decision = decide(attempt, Finished(to_copy), self.run.policy)
        attempt.report = report
        attempt.apply(decision, time.monotonic())
        if decision.action is Action.COPY:
            if all(other.state is State.COPYING for other in attempt.model):  # (of a chain: its last state serves all)
                self.perform(self.copies.make(attempt.model[-1]))
            return []
        if report and not registered:
            self.run.catalog.register(self.run.run_id, attempt.server, report)
        return self._mark_done(attempt)

    def _count_copied(self, attempt: Attempt, event: Copied | CopyFailed) -> list[Stage]:
        """An attempt's state has been copied, or could not be: the stages that have ended by it. With the last attempt of a
        chain, those before it count."""
        if isinstance(event, CopyFailed):
            self.perform(self.recovery.copy_failed(attempt, event))
            return []
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
        run.counts.finished += 1
        run.counts.trained += unit.kind == "train"
        run.ready_since[unit.stage] = time.time()
        if unit.kind == "train":
            run.needed.trained(unit)
            if attempt.writes:
                run.states.finished(unit.stage, attempt.server, attempt.released, self.transfers.is_movable, copied)
                # (of a chain, also the stages that it has passed on; where children began side by side, each left the
                # release to the others)
                stages = run.plan.stages
                run.needed.need_no_parent([stages[number] for number in (*attempt.released, unit.stage)])
        self.left.finishes(unit)
        ended = run.board.finish(unit)
        if unit.kind == "train" and run.board.shares_states:
            run.needed.release_replicas(unit.iteration)
        for stage in ended:
            for child in stage.children:
                run.ready_since[child.number] = time.time()
        if attempt.seconds is not None:
            self.unit_batches.finished(unit, attempt.seconds)
        return ended

    def _failed(self, session: WorkerSession, work: list[Attempt], error: Exception) -> list[Stage]:
        """A session's command has failed: the stages that have ended after all."""
        if getattr(error, "pgcode", None) == DEVICE_FULL:  # no unit is to blame
            self.run.device_parts.full(session.worker)
        elif len(work) > 1:  # one unit may be to blame: from now on each is done alone
            self.unit_batches.single |= {attempt.unit for attempt in work}
        stages: list[Stage] = self.perform(self.recovery.failed(session.worker, work, error))
        return stages

    def _fail_stage(self, attempt: Attempt, message: str, blame: str) -> None:
        """The unit's stage cannot be trained: all configurations that need it have failed, but for those that keep an earlier
        state as their best one. These have stopped after the iteration before."""
        unit = attempt.unit
        message = f"{unit.kind} unit of iteration {unit.iteration} on segment {unit.segment}: {message}"
        keys = self.run.board.fail(unit.stage)
        if blame == "configuration":  # (otherwise mop_resume may try again)
            self.run.needed.need_no_parent([self.run.plan.stages[unit.stage]])
            saved = {key for key in keys if self.controller.keeps(key)}
            for key in sorted(saved):
                self.paths.save(key, message, unit.iteration - 1)
        else:
            saved = set()
        self.paths.give_up(keys - saved, message, blame)
        self.perform(self.controller.failed(keys))

    # --- looking around -----------------------------------------------------------------------------
    def _look(self) -> bool:
        """Look at other servers, control requests, and the number of sessions (mop_set_sessions). True where anything
        may have changed."""
        if time.monotonic() - self.looked < LOOK_SECONDS:
            return False
        self.looked, run = time.monotonic(), self.run
        before = set(run.servers), len(run.attempts_in(State.UNKNOWN))
        self.perform(self.workers.check_servers())
        if ended := self.perform(self.recovery.find_out()):
            self.perform(self.controller.ended(ended))
        ended, taken = self.beside.look()
        if ended:
            self.perform(self.controller.ended(ended))
        self.perform(self.copies.look())
        self.joining.look()
        self.failover.look()
        self.transfers.hurry()
        requests = run.catalog.control_requests(run.run_id)
        changed = (
            taken
            or bool(self.perform(self.controller.control_requests(requests)) or requests)
            or before != (set(run.servers), len(run.attempts_in(State.UNKNOWN)))
        )
        self._note_counts()
        wanted = run.catalog.wanted_sessions(run.run_id)
        if wanted != run.wanted:
            run.wanted, changed = wanted, True
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
                run.done_before + run.counts.finished,
                max(0, self.left.count),
            )

    def _leave(self, name: str, why: str) -> None:
        """A server is given up: no session works there any more, and its units are to be done on others."""
        self.copies.leave(name)
        self.transfers.leave(name)
        self.workers.leave(name)
        self.perform(self.recovery.undo(name, why))

    def _bring_results_home(self) -> None:
        """All is done: the states that configurations end with come to the coordinator's server."""
        if len(self.run.servers) > 1:
            ending = [
                stage
                for stage in self.run.plan.stages.values()
                if stage.trained and (stage.ends or self.run.needed.pinned[stage.number])
            ]
            self.perform(self.transfers.bring_home(ending))

    def _tell_planner(self) -> None:
        """Update the statistics of PostgreSQL's planner, if the run has grown much: for the units, and for people who watch."""
        grown = self.run.counts.finished, len(self.run.plan.stages)
        if not any(now >= max(GROWTH[0], GROWTH[1] * told) for now, told in zip(grown, self.told)):
            return
        self.told = grown
        try:
            self.run.catalog.note_growth(self.run.run_id)
        except psycopg2.Error as error:  # the run is no worse for it
            self.run.db.log(f"the planner was not told of run {self.run.run_id}: {error}")
