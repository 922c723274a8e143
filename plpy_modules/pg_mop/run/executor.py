"""The event loop: gives every worker session that falls idle the scheduler's next unit, until the run is done."""

import itertools
import json
import time
from collections import Counter
from typing import Any

import psycopg2

from mop_udf.aggregate import CONFIGURATION_FAILED, MEMORY_EXCEEDED, TRAINER_LOST
from pg_mop.backend.database import MopError, quote_literal
from pg_mop.backend.limits import TOO_MANY_TRAINERS
from pg_mop.connections.sessions import SessionLost, message_of, run, wait
from pg_mop.run.copies import Copies
from pg_mop.run.requests import Ask, GiveUp, HasState, Pin, Register, Request, Withdraw, perform
from pg_mop.run.servers import States
from pg_mop.schedule.unit_batches import UnitBatches

AWAY_SECONDS = 3  # to wait for a server that has been away
BACK_OFF = 0.5, 60.0  # seconds before a unit's second attempt, and at most before any; it doubles each time
SILENT_SECONDS = 30  # of a server, before the run does without it, where it can
STRAIGHT_SECONDS = 20  # for a state to come straight from another server, and one more for each MB of it
LOOK_SECONDS = 0.5  # between looks at how many sessions are wanted
GROWTH = 1000, 4  # units, or stages, of which the planner is told at first; and by how many times as many from then on
AHEAD_BYTES = 1 << 20, 256 << 20  # least and most of a state that is read while the unit before it trains
RETRY_STATES = (TRAINER_LOST, TOO_MANY_TRAINERS, "40001", "40P01")


class NotCarried(Exception):
    """A model state could not be brought to where it is needed."""


class Executor:
    """Runs a board's units on worker sessions.

    A unit on another server is begun once the states that it reads have been carried there (run/servers.py). What
    it commits there is registered here afterwards, by which alone it counts: one that is not registered is asked for
    where it was begun, and registered late, or else done again.

    `servers`: {name: :class:`~pg_mop.run.servers.Server`}. `orders.describe(units, place)` gives what the worker
    session at a place needs to know of units that it does together (a dict, see run/unit.py). `steering` decides
    what is asked for (see run/controllers.py), and `adopt(stages)` takes over what earlier runs have trained of it.
    `attempts`: {unit: attempts begun} by an earlier coordinator of the run; `wanted`: how many sessions the run asked
    for; `take_back(name)`, `away`: see api/remote_runs.py.
    """

    def __init__(
        self,
        db,
        catalog,
        servers,
        sessions,
        run_id,
        plan,
        board,
        scheduler,
        unit_specs,
        controller,
        adopt,
        extend,
        options,
        attempts,
        wanted,
        take_back,
        away,
    ):
        self.db, self.catalog, self.servers, self.sessions = db, catalog, servers, sessions
        self.run_id, self.plan, self.board, self.scheduler = run_id, plan, board, scheduler
        self.unit_specs, self.controller, self.adopt, self.extend = unit_specs, controller, adopt, extend
        self.kept_bytes = options["checkpoint_mb"] << 20 if options["reuse"] else 0  # of states, for later runs
        self.retries = options["unit_retries"]
        self.server_timeout = options["server_timeout"]
        self.waiting_since = {}  # unit -> since when what it needs is on a server that is away
        self.away = {}  # place -> (when to look whether its server is back, seconds until the next, till when)
        self.attempts = dict(attempts)  # unit -> attempts begun
        self.lost = {}  # unit -> attempts that failed for its place's sake
        self.ray_cluster = set()  # units for whose sake a server was given up
        self.resting = []  # (when it may be tried again, unit)
        self.looked, self.wanted = time.monotonic(), wanted
        self.visits = 1 if board.shares_states else len(board.segments)
        self.states = States(servers, lambda stage: unit_specs.sharing.key(plan.stages[stage])[0])
        self.versions = {stage: m["version"] for stage, m in catalog.models(run_id).items()}
        self.waiting = {}  # stage -> its children that have not begun, which need its state
        self.reading = Counter()  # stage -> units at work that begin with its state
        self.unit_batches = UnitBatches(
            board,
            scheduler,
            lambda number: (unit_specs.sharing.key(plan.stages[number]), plan.stages[number].parameters[1]),
            self.states.bytes,
        )
        self.pinned = Counter()  # stage -> configurations for which its state is kept whatever becomes of it
        self._wait_for(plan.stages.values())
        self.coming = {}  # place -> the stage whose state its session reads ahead
        self.failed = {}  # mst_key -> message
        self.done, self.told = 0, 0  # units that have ended; and those of which the planner has been told
        self.began = time.time()
        self.ready_since = {}  # stage -> when its next unit could have run first (seconds since the epoch)
        self.carried = Counter()  # stage -> how often its state is on its way to another server
        self.begun_on = {}  # unit at work -> the name of the server that it was begun on
        # unit whose server cannot be asked -> (row, stages released, message, since when, whether it was in a group)
        self.unknown = {}
        self.copies = Copies(self, options["replicas"] > 1, take_back, away)

    def go(self):
        """Run until nothing is left to do. Raises MopError where the whole run cannot go on."""
        if self.copies.wanted:
            if self.attempts:  # what an earlier coordinator had copied and not counted is not to be mistaken for it
                self.states.begin_anew()
            self.copies.begin()
            self._bring_home([self.plan.stages[number] for number in self.states.stages()])
        if len(self.plan.stages) >= GROWTH[0]:
            self._tell_planner()
        perform(self.controller.begin(), self._do)
        self._release(self.plan.stages[number] for number in self.states.stages())  # of one that has gone
        self._dispatch()
        while self._is_wanted():
            busy = [s.relay or s for s in self.sessions.by_worker.values() if s.work] + self.copies.busy
            if not (busy or self.resting or self.away or self.unknown or self.copies.resting):
                raise RuntimeError("the scheduler leaves every session idle although units remain")
            ended, answers = [], wait(busy, self.sessions.check_interrupts)
            for session, error in answers:
                if self.copies.makes(session):
                    ended += self.copies.made(session, error)
                    continue
                if session.serves is not None:  # a relay
                    if session.serves.relay is not session:
                        continue
                    session, error = session.serves, self._arrived(session.serves, error)
                    if error is None:
                        continue
                work, session.work = session.work, []
                if work:  # (else its server has been given up since)
                    ended += self._committed(session, work) if error is None else self._failed(session, work, error)
            if ended:
                perform(self.controller.ended(ended), self._do)
            # not without need: what is drawn at random shall not depend on how long things take
            if self._wake() + self._look() + self._come_back() + len(answers):
                self._dispatch()
        self._come_home()

    def _is_wanted(self):
        """False once all is done, and nobody has wished for more since the last look; a run that had nothing to do has
        no sessions for that."""
        while self.board.done and self.controller.done:
            control_requests = self.catalog.control_requests(self.run_id, last=True) if self.sessions.by_worker else []
            if not control_requests:
                return False
            perform(self.controller.control_requests(control_requests), self._do)
            self._dispatch()
        return True

    # --- what is asked for ------------------------------------------------------------------------
    def _do(self, request: Request) -> Any:
        """Carry out a request of the controller. Returns its answer (run/requests.py)."""
        match request:
            case Ask(c, until, evaluated, new):
                stages, requests = self.extend(c, until, evaluated, new, self.shareable)
                if stages or requests or new:
                    self.ask([c] if new else [], stages, requests)
                return stages, requests
            case Register(c):
                self.ask([c], [], [])
            case Withdraw(mst_key, reason, until):
                return self.withdraw(mst_key, reason, until)
            case Pin(stage, instead):
                self.pin(stage, instead)
            case GiveUp(mst_key, message):
                self.give_up([mst_key], message)
            case HasState(stage):
                return self.states.has(stage)
        return None

    def ask(self, configurations, stages, requests):
        """Do more: `stages` as the plan's `ask` gave them, for `requests`: [(mst_key, stage)]; of new configurations
        (as in catalog.open_run)."""
        for name, server in list(self.servers.items()):
            try:
                server.catalog.ask(server.run_id, configurations, stages, requests, self.visits)
            except (psycopg2.Error, MopError) as error:
                if server.home or not self.copies.do_without(name, message_of(error)):
                    raise
        for stage in self.adopt(
            [stage for stage in stages if not self.board.is_running(stage.number) and not self.has_trained(stage)]
        ):
            self.versions[stage.number] = stage.iteration * self.visits
            self.states.adopted(stage.number)
        begun = [stage for stage in stages if stage.number not in self.versions]
        for stage in self.catalog.start(self.run_id, begun, {c["mst_key"]: c for c in configurations}):
            self.states.adopted(stage.number)
        self._wait_for(stages)
        self.board.add(stages)

    def shareable(self, stages, evaluated, keeps=False):
        """Through how many of `stages` (as plan.foresee gives them) a path may lead: all, where it finds the states
        that it needs to end there or go on, with the metrics of iterations `evaluated`; else to the last with one.
        `keeps`: it needs the states of all these iterations: it may end with any of them, or keep it."""
        going = {
            number
            for session in self.sessions.by_worker.values()
            for *_, released in session.work
            for number in released
        } | self.copies.going
        going |= {number for _, released, *_ in self.unknown.values() for number in released}
        there = 0
        for i, stage in enumerate(stages):
            if not stage.trained:
                begun = stage.number in self.versions or self.board.is_running(stage.number)
                return len(stages) if begun or there == i else there
            if self.states.has(stage.number) and stage.number not in going:
                there = i + 1
            elif stage.iteration in evaluated and (keeps or not stage.scored):
                return there
        return there

    def withdraw(self, mst_key, reason, until=None):
        """Do nothing more for a configuration but to end the iteration that it is in; `until`: the iteration with which
        it ends, where that is known. Returns the stages that it gives up."""
        before = self.plan.path(mst_key)
        self.board.withdraw(mst_key, until)
        gone = before[len(self.plan.path(mst_key)) :]
        self._need_no_parent(stage for stage in before if not stage.trials)
        self._release(stage for stage in gone if stage.trained)
        self.catalog.withdraw(self.run_id, mst_key, len(before) - len(gone), reason)
        return gone

    def pin(self, stage, instead=None):
        """Keep a stage's state to the end for a configuration, `instead` of the one that was kept for it (numbers).
        Others may keep that one still."""
        self.pinned[stage] += 1
        if instead is not None:
            self.pinned[instead] -= 1
            self._release([self.plan.stages[instead]])

    def _wait_for(self, stages):
        for stage in stages:
            if (
                stage.parent is not None
                and stage.number not in self.versions
                and stage.trials
                and not (stage.failed or stage.trained)
            ):
                self.waiting.setdefault(stage.parent.number, set()).add(stage.number)

    def _need_no_parent(self, stages):
        """These stages will not begin, or have begun: they need their parents' states no longer."""
        parents = []
        for stage in stages:
            if stage.parent is not None:
                self.waiting.get(stage.parent.number, set()).discard(stage.number)
                parents.append(stage.parent)
        self._release(parents)

    def _release(self, stages):
        """Give those of the stages' states up that nobody will read any more."""
        gone = (
            []
            if self.board.shares_states
            else [
                stage.number
                for stage in stages
                if self.states.has(stage.number) and not self.reading[stage.number] and self._is_unneeded(stage)
            ]
        )
        if gone:
            self.states.release(gone)

    def lost_states(self):
        """Stages whose state is needed and on no server: they have been trained where nobody answers."""
        first = min((stage.iteration for stage in self.plan.stages.values() if not stage.ended), default=0)
        return [
            stage
            for stage in self.plan.stages.values()
            if self.version(stage.number) > (stage.iteration - 1) * self.visits
            and not self.states.has(stage.number)
            and (stage.iteration >= first - 1 if self.board.shares_states else self._is_read(stage))
        ]

    def _is_read(self, stage, but_for=None):
        """True where the stage's state will be read, not only by its child `but_for`."""
        return (
            not stage.ended
            or stage.ends
            or self.pinned[stage.number]
            or bool(self.waiting.get(stage.number, set()) - {but_for})
        )

    def _is_unneeded(self, stage, but_for=None):
        """True where nobody will read the stage's state any more, but for its child `but_for`."""
        return (
            not self._is_read(stage, but_for)
            # where paths part, or a search has halted once, another run may begin
            and not (
                (len(stage.children) > 1 or stage.evaluated and self.board.searched)
                and self.states.live < self.kept_bytes
            )
        )

    # --- the loop's steps -------------------------------------------------------------------------
    def _wake(self):
        """Let the units that have rested long enough be run again: how many."""
        now = time.monotonic()
        rested = [r for r in self.resting if r[0] <= now]
        for when, unit in rested:
            self.resting.remove((when, unit))
            self.board.release(unit)
        return len(rested)

    def _look(self):
        """Do what somebody wants of the run; open or end sessions where it is another number of them
        (mop_set_sessions). True where anything may have changed."""
        if time.monotonic() - self.looked < LOOK_SECONDS:
            return False
        self.looked = time.monotonic()
        before = set(self.servers), len(self.unknown)
        self._feel_pulses()
        if ended := self._find_out():
            perform(self.controller.ended(ended), self._do)
        self.copies.look()
        self._hurry()
        control_requests = self.catalog.control_requests(self.run_id)
        changed = (
            perform(self.controller.control_requests(control_requests), self._do)
            or bool(control_requests)
            or before != (set(self.servers), len(self.unknown))
        )
        wanted = self.catalog.wanted_sessions(self.run_id)
        if wanted != self.wanted:
            self.wanted, changed = wanted, True
            self.resize(wanted)
        return changed

    def _hurry(self):
        """Give up what does not come straight from another server: their line may be down, which no pulse of ours
        tells. It comes through this server then."""
        for session in self.sessions.by_worker.values():
            if session.relay is not None and session.relay.target.server is not None:
                megabytes = sum(self.states.bytes(move.stage) for move in session.moves) >> 20
                if time.monotonic() - session.since > STRAIGHT_SECONDS + megabytes:
                    session.relay.close()

    def leave(self, name, why):
        """No session is at work on a server any more, or waits for states from there. What was under way there is to be
        done elsewhere."""
        for worker, session in list(self.sessions.by_worker.items()):
            if self.board.server(worker) == name:
                if session.relay is not None:
                    session.relay.close()
                for move in session.moves:
                    self.carried[move.stage] -= 1
                work, session.work, session.moves, session.relay = session.work, [], [], None
                for unit, row, _ in work:
                    self.undo(unit, row, why)
                self.end(worker)
            elif any(move.source == name for move in session.moves):
                session.relay.close()
        for unit in [unit for unit in self.unknown if self.begun_on[unit] == name]:
            self.undo(unit, self.unknown.pop(unit)[0], why)
        self.away = {worker: until for worker, until in self.away.items() if self.board.server(worker) != name}

    def resize(self, wanted):
        """Go on with `wanted` sessions, or as many of them as can be opened. Who leaves ends his unit first."""
        servers, served = self.board.servers, self.board.workers

        def all_workers():
            yield from served
            for p in itertools.count():
                if p not in served and p not in self.sessions.by_worker and self.board.server(p) in servers:
                    yield p

        first = [next(p for p in all_workers() if self.board.server(p) == server) for server in servers]
        more = (p for p in all_workers() if p not in first)
        chosen = first + list(itertools.islice(more, max(0, wanted - len(first))))
        new = [p for p in chosen if p not in served]
        refused = self.sessions.add(new)
        workers = [p for p in chosen if p in served or p in self.sessions.by_worker]
        if refused is not None:
            self.db.warning(
                f"run {self.run_id} goes on with {len(workers)} worker sessions, not {len(chosen)}", detail=str(refused)
            )
        for worker in {*first} - {*workers}:  # nobody else does that server's segments
            self._wait_for_worker(worker)
        self.board.serve({*workers, *first})
        self._let_go()

    def _wait_for_worker(self, worker):
        now = time.monotonic()
        self.away[worker] = now + BACK_OFF[0], BACK_OFF[0], now + self.server_timeout / 1000

    def _let_go(self):
        """End the idle sessions that serve no place any more."""
        for worker, session in list(self.sessions.by_worker.items()):
            if worker not in self.board.workers and not session.work:
                self.end(worker)

    def end(self, worker):
        self.sessions.end(worker)
        self.coming.pop(worker, None)
        self.board.reserve(worker, None)

    def _dispatch(self):
        before = None
        while before != set(self.servers):  # (one that turns out to be away leaves its units to others)
            before = set(self.servers)
            self._let_go()
            idle = [
                worker
                for worker, session in self.sessions.by_worker.items()
                if not session.work and worker in self.board.workers
            ]
            for worker in self.scheduler.arrange(idle):
                session = self.sessions.by_worker.get(worker)
                units = self.unit_batches.choose(worker) if session is not None and not session.work else None
                if units:
                    self._start(session, units)

    def _coming(self, worker):
        """The model whose state the session at `place` may read while it trains another; None where it is not known.

        Others leave it to this place as long as they have others.
        """
        unit = self.scheduler.coming(worker)
        least, most = AHEAD_BYTES
        if (
            unit is None
            or not least <= self.states.bytes(unit.stage) <= most
            or any(not self.states.is_at(s, self.board.server(worker)) for s in self._read_by(unit))
        ):
            self.board.reserve(worker, None)
            self.coming.pop(worker, None)
            return None
        self.board.reserve(worker, unit.stage)
        self.coming[worker] = unit.stage
        return {"stage": unit.stage, "version": self.version(unit.stage)}

    def version(self, stage):
        """How often the stage's state has been trained since its path began."""
        return self.versions.get(stage, (self.plan.stages[stage].iteration - 1) * self.visits)

    def has_trained(self, stage):
        """True where the stage has been trained on a segment at least, in this run."""
        return stage.origin is None and self.version(stage.number) > (stage.iteration - 1) * self.visits

    def _start(self, session, units):
        rows, models = [], []
        server = self.sessions.server(session.worker)
        moves = [
            self.states.expect(stage, self.version(stage), server.name)
            for stage in sorted({stage for unit in units for stage in self._read_by(unit)})
            if not self.states.is_at(stage, server.name)
        ]
        for unit in units:
            self.begun_on[unit] = server.name
            attempt = self.attempts[unit] = self.attempts.get(unit, 0) + 1
            rows.append(
                {
                    "run_id": self.run_id,
                    "stage": unit.stage,
                    "iteration": unit.iteration,
                    "segment": unit.segment,
                    "kind": unit.kind,
                    "dataset": unit.dataset,
                    "attempt": attempt,
                    "queued_at": self.ready_since.get(unit.stage, self.began),
                }
            )
            train = unit.kind == "train"
            models.append(
                {
                    "stage": unit.stage,
                    "iteration": unit.iteration,
                    "attempt": attempt,
                    "version": self.version(unit.stage),
                    "release": [],
                    "state_table": self.states.begin(unit.stage, server.name) if train else None,
                }
            )
            parent = self.plan.stages[unit.stage].parent
            if train and parent is not None and unit.stage not in self.versions:
                self.reading[parent.number] += 1
                if not self.board.shares_states and self._is_unneeded(parent, but_for=unit.stage):
                    models[-1]["release"].append(parent.number)
        work = {
            **self.unit_specs.describe(units, session.worker),
            "run_id": server.run_id,
            "fencing_token": server.catalog.fencing_token,
            "kind": units[0].kind,
            "dataset": units[0].dataset,
            "segment": units[0].segment,
        }
        work["coming"] = self._coming(session.worker)
        work["models"] = [{**model, **more} for model, more in zip(models, work["models"])]
        session.work = [(unit, row, model["release"]) for unit, row, model in zip(units, rows, models)]
        session.since = time.monotonic()
        try:
            begin = server.catalog.begin_units_sql(server.run_id, rows)
            session.command = (
                f"BEGIN; {begin}; COMMIT; "
                f"BEGIN; SELECT {server.schema}.mop_run_unit({quote_literal(json.dumps(work))}); COMMIT"
            )
            if not server.home:
                session.command += "; " + server.catalog.report_sql(server.run_id, units[0]).replace("%%", "%")
                self.catalog.begin_units(self.run_id, rows)
            if moves:
                self._carry(session, moves)
            else:
                self._begin(session)
        except (SessionLost, NotCarried, psycopg2.OperationalError, MopError) as error:
            work, session.work = session.work, []
            if getattr(error, "sqlstate", None) == "08001":  # its server refuses everybody
                error = SessionLost(message_of(error))
            elif not isinstance(error, SessionLost):
                error = NotCarried(message_of(error))
            self.controller.ended(self._failed(session, work, error))

    def _begin(self, session):
        """Let the session do its work. Raises SessionLost, and psycopg2.Error where its server does not answer."""
        server = self.sessions.server(session.worker)
        for unit, *_ in session.work if not server.home else ():
            if unit.kind == "evaluate" and self.board.is_last(unit):
                sums = self.catalog.partials(self.run_id, unit.stage, unit.dataset)
                if sums is not None:
                    server.catalog.put_partials(server.run_id, unit.stage, unit.dataset, sums)
        session.begin(session.clean_sql() + session.command)
        for unit, *_ in session.work:
            self.waiting_since.pop(unit, None)

    # --- other servers ----------------------------------------------------------------------------
    def _read_by(self, unit):
        """The stages whose states a unit reads: its own, or before it has been trained its parent's; and those that the
        replicas are in."""
        read = []
        for number in [unit.stage, *(number for number, _ in self.unit_specs.replicas_of(unit) or ())]:
            stage = self.plan.stages[number]
            for own in (stage, stage.parent):
                if own is not None and self.states.has(own.number):
                    read.append(own.number)
                    break
        return read

    def _carry(self, session, moves):
        """Bring states to the session's server, before it begins. Raises NotCarried."""
        at = self.states.carrier(moves)
        try:
            relay = self.sessions.relay(session, at)
            tables = "" if relay.prepared else self.states.tables_sql(at) + "; "
            relay.begin(relay.clean_sql() + tables + "; ".join(self.states.move_sql(at, move) for move in moves))
        except (SessionLost, MopError) as error:
            self.states.not_straight(moves)
            for move in moves:
                self.states.given_up(move)
            raise NotCarried(f"a model state could not be carried: {message_of(error)}") from None
        session.moves, session.relay = moves, relay
        for move in moves:
            self.carried[move.stage] += 1

    def _arrived(self, session, error):
        """A relay has ended: let its session begin its work. What went wrong, or None."""
        moves, session.moves, relay, session.relay = session.moves, [], session.relay, None
        for move in moves:
            self.carried[move.stage] -= 1
            if error is not None:
                self.states.given_up(move)
                continue
            try:
                self.states.arrived(move, self.is_movable)
            except (psycopg2.Error, MopError) as trouble:
                error = trouble
        if isinstance(error, SessionLost):
            relay.close()
        straight = relay.target.server is not None
        if error is not None and straight:
            self.db.plpy.log(f"pg_mop: server {relay.target.server} cannot fetch states: {message_of(error)}")
            self.states.not_straight(moves)
        relay.prepared = relay.prepared or error is None
        if error is not None:  # of class 42: a right is missing, which waiting does not mend
            return (
                error
                if not straight and (getattr(error, "pgcode", None) or "").startswith("42")
                else NotCarried(f"a model state could not be carried: {message_of(error)}")
            )
        try:
            self._begin(session)
        except SessionLost as trouble:
            return trouble
        except (psycopg2.Error, MopError) as trouble:
            return NotCarried(message_of(trouble))
        return None

    def _committed(self, session, work):
        """Take note of what a session has committed: the stages that ended by it."""
        server, ended = self.sessions.server(session.worker), []
        seconds, reports = (time.monotonic() - session.since) / len(work), [None] * len(work)
        if not server.home:
            try:
                reports = [session.rows()[0][0]]  # that of the first comes with the answer
                reports += [server.catalog.report(server.run_id, unit) for unit, *_ in work[1:]]
            except (psycopg2.Error, MopError) as error:
                session.close()
                return self._failed(session, work, SessionLost(message_of(error)))
        for attempt, report in zip(work, reports):
            ended += self._count(*attempt, report, seconds)
        return ended

    def _count(self, unit, row, released, report, seconds=None):
        """An attempt has been committed: it counts, where it was begun elsewhere once it is registered here. `report`:
        that server's; `seconds`: what it took, if that is known. The stages that ended by it."""
        if report and self.copies.wanted and unit.kind == "train":
            self.copies.make(unit, row, released, report, seconds)
            return []
        if report:
            self.catalog.register(self.run_id, report)
        return self.counted(unit, released, seconds)

    def counted(self, unit, released, seconds, copied=False):
        """Take note of a unit that counts now; `copied`: its state has come to this server, too."""
        ended = self._finished(unit, released, copied)
        if seconds is not None:
            self.unit_batches.finished(unit, seconds)
        return ended

    def _come_home(self):
        """All is done: what configurations end with comes to this server; the others keep nothing of the run."""
        if len(self.servers) == 1:
            return
        self._bring_home(
            [
                stage
                for stage in self.plan.stages.values()
                if stage.trained and (stage.ends or self.pinned[stage.number])
            ]
        )

    def _bring_home(self, stages):
        """Carry the states of stages to this server that are elsewhere."""
        for stage in [s.number for s in stages if self.states.has(s.number) and not self.states.is_at(s.number, None)]:
            since, error = time.monotonic(), self._bring(stage)
            while error is not None:
                if time.monotonic() - since > self.server_timeout / 1000:
                    raise self.waited_in_vain(f"a model state could not be brought home: {message_of(error)}")
                wait([], self._watchful_tick, BACK_OFF[0])
                error = self._bring(stage)

    def _bring(self, stage):
        """Carry a stage's state to this server; what went wrong, or None."""
        move = self.states.expect(stage, self.version(stage), None)
        home = self.servers[None]
        try:
            relay = self.sessions.relay(None, home)
        except MopError as error:
            self.states.given_up(move)
            return error
        try:
            if not relay.prepared:
                run(relay, self.states.tables_sql(home), self._watchful_tick)
                relay.prepared = True
            run(relay, relay.clean_sql() + self.states.move_sql(home, move), self._watchful_tick)
        except (psycopg2.Error, SessionLost) as error:
            self.states.given_up(move)
            return error
        self.states.arrived(move, self.is_movable)
        return None

    def _watchful_tick(self):
        """What is called while a relay is waited for: it may hang on another server."""
        self.sessions.check_interrupts()
        self._feel_pulses()

    def _finished(self, unit, released, copied=False):
        """Take note of a unit that was done: the stages that ended by it."""
        self.done += 1
        if self.done >= max(GROWTH[0], GROWTH[1] * self.told):
            self.told = self.done
            self._tell_planner()
        self.ready_since[unit.stage] = time.time()
        if unit.kind == "train":
            self._read(unit)
            self.versions[unit.stage] = self.version(unit.stage) + 1
            self.states.finished(unit.stage, self.begun_on[unit], released, self.is_movable, copied)
            # where children began side by side, each had left the state to the others
            self._need_no_parent([self.plan.stages[unit.stage]])
        self.begun_on.pop(unit, None)
        ended = self.board.finish(unit)
        if unit.kind == "train" and self.board.shares_states:
            self._release_replicas(unit.iteration)
        for stage in ended:
            for child in stage.children:
                self.ready_since[child.number] = time.time()
        return ended

    def _tell_planner(self):
        """Who looks at the run waits less by it: no run ends where it fails."""
        try:
            self.catalog.note_growth(self.run_id)
        except psycopg2.Error as error:
            self.db.plpy.log(f"pg_mop: the planner was not told of run {self.run_id}: {error}")

    def _read(self, unit):
        """A training unit has ended, well or not: it reads its parent's state no longer."""
        parent = self.plan.stages[unit.stage].parent
        if parent is not None and unit.stage not in self.versions:
            self.reading[parent.number] -= 1

    def is_movable(self, stage):
        return not (
            self.board.shares_states
            or self.board.is_running(stage)
            or self.reading[stage]
            or self.carried[stage]
            or stage in self.coming.values()
            or any(self.plan.stages[other].parent is self.plan.stages[stage] for other in self.coming.values())
        )

    def _release_replicas(self, iteration):
        """Averaging: once all replicas have trained an iteration, nobody needs their states of the one before."""
        paths = [self.plan.path(key) for key in range(1, len(self.unit_specs.replicas) + 1)]
        if iteration > 1 and all(path[iteration - 1].trained for path in paths):
            before = [path[iteration - 2].number for path in paths]
            self.states.release(before)

    def _failed(self, session, work, error):
        """Retry, give the configuration up, or stop the run, as the error says: the stages that ended after all."""
        code = getattr(error, "pgcode", None)
        message = message_of(error)
        ended = []
        if isinstance(error, SessionLost):
            self._replace(session.worker)
        together = len(work) > 1
        if together:  # one of them may be to blame: from now on each is done for itself
            self.unit_batches.single |= {unit for unit, *_ in work}
            if code in (CONFIGURATION_FAILED, MEMORY_EXCEEDED):
                message = f"of {len(work)} units that went together one failed ({message}): each is done by itself"
        for unit, row, released in work:
            name = self.begun_on[unit]
            if name not in self.servers:  # it has been given up
                self.undo(unit, row, message)
                continue
            if isinstance(error, SessionLost):
                try:
                    report = self._fence(unit, row, name, message)
                except (psycopg2.Error, MopError) as trouble:
                    if self.servers[name].home:
                        raise
                    if self.copies.do_without(name, message_of(trouble)):
                        self.undo(unit, row, message)
                    else:  # it may still be committed: nobody trains the stage until that is known
                        self.unknown[unit] = row, released, message, time.monotonic(), together
                    continue
                if report is not None:
                    ended += self._count(unit, row, released, report)
                    continue
            else:
                self._note_failure(unit, row, message, name)
            self._unbegin(unit)
            if code in (CONFIGURATION_FAILED, MEMORY_EXCEEDED):
                self.board.release(unit)
                if not together:
                    self._give_up(unit, message, "configuration" if code == CONFIGURATION_FAILED else "place")
            elif isinstance(error, NotCarried):
                self._wait_for_servers(unit, message, name)
            elif isinstance(error, SessionLost) or code in RETRY_STATES:
                self._retry(unit, message, name if isinstance(error, SessionLost) else None, together)
            elif code == "55P03":
                raise MopError(
                    f"a worker session waited in vain for a lock: {message}",
                    hint="Another transaction holds it (see pg_locks), perhaps the one that made this "
                    "call: COMMIT it first, or raise pg_mop.lock_timeout.",
                    sqlstate="55P03",
                )
            else:
                raise MopError(
                    f"a worker session failed: {message}",
                    detail=getattr(error.diag, "message_detail", None),
                    hint=getattr(error.diag, "message_hint", None),
                    sqlstate=code or "XX000",
                )
        if isinstance(error, SessionLost):
            self.unit_specs.engine.check_whole(self.catalog.execute)
        return ended

    def _fence(self, unit, row, name, message):
        """See to it that an attempt whose session was lost is not committed any more: what its server says of it where
        it has been (the coordinator's own: ''), else None. Raises psycopg2.Error, MopError: it cannot be asked."""
        server = self.servers[name]
        server.catalog.fail_unit({**row, "run_id": server.run_id}, message)
        if server.home:
            return "" if self.catalog.unit_is_finished(row) else None
        report = server.catalog.report(server.run_id, unit)
        if report is None:
            self.catalog.fail_unit(row, message)
        return report

    def _find_out(self):
        """Ask once more what has become of attempts whose servers could not be asked: the stages that ended."""
        ended = []
        for unit, (row, released, message, since, together) in list(self.unknown.items()):
            name = self.begun_on.get(unit)
            if unit not in self.unknown or self.servers[name].silent:
                continue
            try:
                report = self._fence(unit, row, name, message)
            except (psycopg2.Error, MopError) as error:
                self.servers[name].silent = True
                if self.copies.do_without(name, message_of(error)):
                    continue
                if time.monotonic() - since > self.server_timeout / 1000:
                    raise self.waited_in_vain(
                        f"server {name} cannot be asked: {message_of(error)}", "it is back"
                    ) from None
                continue
            del self.unknown[unit]
            if report is not None:
                ended += self._count(unit, row, released, report)
            else:
                self._unbegin(unit)
                self._retry(unit, message, name, together)
        return ended

    def _unbegin(self, unit):
        """An attempt has come to nothing."""
        name = self.begun_on.pop(unit)
        if unit.kind == "train":
            self._read(unit)
            if name in self.servers:
                self.states.failed(unit.stage, name)

    def undo(self, unit, row, message):
        """What was begun on a server that the run does without now is to be done elsewhere."""
        self.catalog.fail_unit(row, message)
        self._unbegin(unit)
        self.board.release(unit)

    def _note_failure(self, unit, row, message, name):
        """Note that an attempt failed, wherever it was begun."""
        self.catalog.fail_unit(row, message)
        server = self.servers[name]
        if not server.home:
            try:
                server.catalog.fail_unit({**row, "run_id": server.run_id}, message)
            except (psycopg2.Error, MopError) as error:
                self.db.plpy.log(f"pg_mop: server {server.name} has not heard that a unit failed: {error}")

    def _replace(self, worker):
        """A new session for a place whose own was lost; where none can be had, the others go on without it."""
        if worker not in self.board.workers:  # it was to go anyway
            self.end(worker)
            return
        try:
            self.sessions.fresh(worker)
        except MopError as error:
            server = self.board.server(worker)
            if not self.servers[server].home and not any(
                p != worker and p in self.sessions.by_worker and self.board.server(p) == server
                for p in self.board.workers
            ):
                self.end(worker)
                if self.copies.do_without(server, error.message):
                    return
                self._wait_for_worker(worker)
                self.db.warning(
                    f"run {self.run_id} goes on without server {server} until it is back: {error.message}",
                    detail=error.detail,
                )
                return
            left = [p for p in self.board.workers if p != worker and (p in self.sessions.by_worker or p in self.away)]
            if not any(p in self.sessions.by_worker for p in left):
                raise
            self.end(worker)
            self.board.serve(left)
            self.db.warning(
                f"run {self.run_id} goes on with {len(left)} worker sessions: {error.message}", detail=error.detail
            )

    def _feel_pulses(self):
        """Look whether the other servers answer. Raises MopError where one has not for server_timeout."""
        for name, server in list(self.servers.items()):
            if not server.home:
                silent = self.sessions.silence(server)
                server.silent = server.silent and silent > 0
                if silent > min(SILENT_SECONDS, self.server_timeout / 4000) and self.copies.do_without(
                    name, f"it has not answered for {silent:.0f} s"
                ):
                    continue
                if silent > self.server_timeout / 1000:
                    raise self.waited_in_vain(f"server {name} has not answered for {silent:.0f} s", "it is back")

    def waited_in_vain(self, message, until="all servers are back", detail=None):
        """The MopError for a server that has been away for server_timeout."""
        return MopError(
            message,
            detail=detail,
            sqlstate="08006",
            hint=f"SELECT {self.db.extension}.mop_resume({self.run_id}); once {until}.",
        )

    def _come_back(self):
        """Open sessions on the servers that were away. True where one is back. Raises MopError after server_timeout."""
        back = False
        for worker, (when, delay, until) in list(self.away.items()):
            now = time.monotonic()
            if now < when:
                continue
            try:
                self.sessions.fresh(worker, AWAY_SECONDS)
            except MopError as error:
                self.end(worker)  # (it may have a session whose trainer cannot be started)
                if self.copies.do_without(self.board.server(worker), error.message):
                    back = True
                    continue
                if now > until:
                    raise self.waited_in_vain(
                        f"server {self.board.server(worker)} has been away for "
                        f"{self.server_timeout / 1000:g} s: {error.message}",
                        "it is back",
                        error.detail,
                    ) from None
                self.away[worker] = now + min(BACK_OFF[1], 2 * delay), 2 * delay, until
                continue
            del self.away[worker]
            back = True
        return back

    def _retry(self, unit, message, name, together):
        """Try a unit again after a while or, once, elsewhere than on the server `name`, if it lost its sessions there;
        or give its configuration up. Where it went `together` with others it does not count: they may be to blame."""
        if together:
            self.resting.append((time.monotonic() + BACK_OFF[0], unit))
            return
        lost = self.lost[unit] = self.lost.get(unit, 0) + 1
        if lost > self.retries and unit not in self.ray_cluster and self.copies.do_without(name, message):
            self.ray_cluster.add(unit)
            self.lost[unit] = 0
            self.board.release(unit)
        elif lost > self.retries:
            self.board.release(unit)
            self._give_up(unit, f"given up after {lost} attempts: {message}", "place")
        else:
            first, most = BACK_OFF
            self.resting.append((time.monotonic() + min(most, first * 2 ** (lost - 1)), unit))

    def _wait_for_servers(self, unit, message, name):
        """Try a unit again that waits for states on their way to the server `name`, or from one that is away. Raises
        MopError after server_timeout."""
        now = time.monotonic()
        since = self.waiting_since.setdefault(unit, now)
        if now - since > self.server_timeout / 1000:
            if not self.copies.do_without(name, message):
                raise self.waited_in_vain(message)
            self.board.release(unit)
            return
        self.resting.append((now + min(5.0, max(BACK_OFF[0], now - since)), unit))

    def _give_up(self, unit, message, blame):
        """The unit's stage cannot be trained: all configurations that need it have failed."""
        message = f"{unit.kind} unit of iteration {unit.iteration} on segment {unit.segment}: {message}"
        keys = self.board.fail(unit.stage)
        if blame == "configuration":  # else it may be resumed
            self._need_no_parent([self.plan.stages[unit.stage]])
        self.give_up(keys, message, blame)
        perform(self.controller.failed(keys), self._do)

    def give_up(self, keys, message, blame="place"):
        """Note that configurations have failed."""
        self.failed.update(dict.fromkeys(keys, message))
        self.catalog.fail_configurations(self.run_id, keys, message, blame)
