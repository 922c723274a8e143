"""The event loop: gives every worker session that falls idle the scheduler's next unit, until the run is done."""

import json
import re
import time

import psycopg2

from mop_udf.aggregate import CONFIGURATION_FAILED, MEMORY_EXCEEDED, TRAINER_LOST
from pg_mop.database import MopError, quote_literal
from pg_mop.execute.generations import Generations
from pg_mop.execute.sessions import SessionLost, wait
from pg_mop.limits import TOO_MANY_TRAINERS

BACK_OFF = 0.5, 60.0  # seconds before a unit's second attempt, and at most before any; it doubles each time
LOOK_SECONDS = 0.5  # between looks at how many sessions are wanted
TOGETHER_BYTES = 256 << 20  # of the states of models that are evaluated together
AHEAD_BYTES = 1 << 20, 256 << 20  # least and most of a state that is read while the unit before it trains
RETRY_STATES = (TRAINER_LOST, TOO_MANY_TRAINERS, "40001", "40P01")


class Executor:
    """Runs a board's units on worker sessions.

    `describe(units, place)` gives what the worker session at a place needs to know of units that it does together
    (a dict, see execute/unit.py);
    `on_iteration(i)` is called once every live configuration has been through iteration i. `attempts`: {unit: attempts
    begun} by an earlier coordinator of the run; `wanted`: how many sessions the run asked for.
    """

    def __init__(self, db, catalog, sessions, run_id, board, scheduler, describe, on_iteration, options, attempts,
                 wanted):
        self.db, self.catalog, self.sessions = db, catalog, sessions
        self.run_id, self.board, self.scheduler = run_id, board, scheduler
        self.describe, self.on_iteration = describe, on_iteration
        self.lock_timeout, self.retries = options["lock_timeout"], options["unit_retries"]
        self.attempts = dict(attempts)  # unit -> attempts begun
        self.lost = {}          # unit -> attempts that failed for its place's sake
        self.resting = []       # (when it may be tried again, unit)
        self.looked, self.wanted = time.monotonic(), wanted
        self.generations = Generations(catalog, run_id)
        self.versions = {key: m["version"] for key, m in catalog.models(run_id).items()}
        self.coming = {}        # place -> the mst_key whose state its session reads ahead
        self.failed = {}        # mst_key -> message
        self.alone = set()      # units that are evaluated each for itself
        self.waiting_since = {} # unit -> when it could have run first (seconds since the epoch)
        self.told = self._reached() - 1  # iterations reported

    def go(self):
        """Run until no configuration has work left. Raises MopError where the whole run cannot go on."""
        self._dispatch()
        while not self.board.done:
            busy = [s for s in self.sessions.by_place.values() if s.work]
            if not busy and not self.resting:
                raise RuntimeError("the scheduler leaves every session idle although units remain")
            for session, error in wait(busy, self.sessions.tick):
                work, session.work = session.work, []
                if error is None:
                    seconds = (time.monotonic() - session.since) / len(work)
                    for unit, _ in work:
                        self._finished(unit)
                        self.scheduler.finished(unit, seconds)
                else:
                    self._failed(session, work, error)
            self._report()
            self._wake()
            self._look()
            self._dispatch()
        self._report()

    def _wake(self):
        """Let the units that have rested long enough be run again."""
        now = time.monotonic()
        for when, unit in [r for r in self.resting if r[0] <= now]:
            self.resting.remove((when, unit))
            self.board.release(unit)

    def _look(self):
        """Open or end sessions where somebody wants another number of them (mop_set_sessions)."""
        if time.monotonic() - self.looked < LOOK_SECONDS:
            return
        self.looked = time.monotonic()
        wanted = self.catalog.wanted_sessions(self.run_id)
        if wanted != self.wanted:
            self.wanted = wanted
            self.resize(wanted)

    def resize(self, wanted):
        """Go on with `wanted` sessions, or as many of them as can be opened. Who leaves ends his unit first."""
        places = self.board.places[:wanted]
        new = [p for p in range(len(places) + wanted) if p not in self.sessions.by_place][:wanted - len(places)]
        refused = self.sessions.add(new)
        places += [p for p in new if p in self.sessions.by_place]
        if refused is not None:
            self.db.warning(f"run {self.run_id} goes on with {len(places)} worker sessions, not {wanted}",
                            detail=str(refused))
        self.board.serve(places)
        self._let_go()

    def _let_go(self):
        """End the idle sessions that serve no place any more."""
        for place, session in list(self.sessions.by_place.items()):
            if place not in self.board.places and not session.work:
                self._end(place)

    def _end(self, place):
        self.sessions.end(place)
        self.coming.pop(place, None)
        self.board.reserve(place, None)

    def _dispatch(self):
        now = time.time()
        self._let_go()
        for place, session in sorted(self.sessions.by_place.items()):
            if session.work or place not in self.board.places:
                continue
            eligible = self.board.eligible(place)
            for unit in eligible:
                self.waiting_since.setdefault(unit, now)
            unit = self.scheduler.choose(place)
            if unit is not None:
                self._start(session, self._together(unit, eligible))

    def _together(self, unit, eligible):
        """The unit and, where it is an evaluation, the others that are due on the same rows, as far as memory goes."""
        if unit.kind != "evaluate" or unit in self.alone:
            return [unit]
        units = [unit, *(u for u in eligible if u != unit and u not in self.alone
                         and (u.kind, u.dataset, u.segment) == (unit.kind, unit.dataset, unit.segment))]
        if len(units) == 1:
            return units
        total, chosen = 0, []
        for u in units:
            total += self.generations.bytes.get(u.mst_key, 0)
            if chosen and total > TOGETHER_BYTES:
                break
            chosen.append(u)
        return sorted(chosen, key=lambda u: u.mst_key)  # all sessions lock models in one order

    def _coming(self, place):
        """The model whose state the session at `place` may read while it trains another; None where it is not known.

        Others leave it to this place as long as they have others.
        """
        unit = self.scheduler.coming(place)
        least, most = AHEAD_BYTES
        if unit is None or not least <= self.generations.bytes.get(unit.mst_key, 0) <= most:
            self.board.reserve(place, None)
            self.coming.pop(place, None)
            return None
        self.board.reserve(place, unit.mst_key)
        self.coming[place] = unit.mst_key
        return {"mst_key": unit.mst_key, "version": self.versions[unit.mst_key]}

    def _start(self, session, units):
        rows, models = [], []
        for unit in units:
            attempt = self.attempts[unit] = self.attempts.get(unit, 0) + 1
            rows.append({"run_id": self.run_id, "mst_key": unit.mst_key, "iteration": unit.iteration,
                         "segment": unit.segment, "kind": unit.kind, "dataset": unit.dataset, "attempt": attempt,
                         "queued_at": self.waiting_since.get(unit, time.time())})
            models.append({"mst_key": unit.mst_key, "iteration": unit.iteration, "attempt": attempt,
                           "version": self.versions[unit.mst_key],
                           "generation": self.generations.begin(unit.mst_key) if unit.kind == "train" else None})
            self.board.start(unit)
        work = {**self.describe(units, session.place), "run_id": self.run_id, "epoch": self.catalog.epoch,
                "kind": units[0].kind, "dataset": units[0].dataset, "segment": units[0].segment}
        work["coming"] = self._coming(session.place)
        work["models"] = [{**model, **more} for model, more in zip(models, work["models"])]
        session.work, session.since = list(zip(units, rows)), time.monotonic()
        begin = "; ".join(self.catalog.begin_unit_sql(row) for row in rows)
        try:
            session.begin(
                f"{session.clean_sql()}SET lock_timeout = {self.lock_timeout}; BEGIN; {begin}; COMMIT; "
                f"BEGIN; SELECT {self.db.extension}.mop_run_unit({quote_literal(json.dumps(work))}); COMMIT")
        except SessionLost as error:
            work, session.work = session.work, []
            self._failed(session, work, error)

    def _finished(self, unit):
        self.board.finish(unit)
        if unit.kind == "train":
            self.versions[unit.mst_key] += 1
            self.generations.finished(unit.mst_key, lambda key: not (
                self.board.is_running(key) or key in self.coming.values() or self.board.shares_states),
                                      self.board.shares_states)

    def _failed(self, session, work, error):
        """Retry, give the configuration up, or stop the run, as the error says."""
        code = getattr(error, "pgcode", None)
        message = _message(error)
        if isinstance(error, SessionLost):
            self._replace(session.place)
        if len(work) > 1:  # one of them may be to blame: from now on each is evaluated for itself
            self.alone |= {unit for unit, _ in work}
        for unit, row in work:
            if isinstance(error, SessionLost) and self.catalog.unit_is_finished(row):
                self._finished(unit)
                continue
            self.catalog.fail_unit(row, message)
            self.generations.failed(unit.mst_key)
            if code in (CONFIGURATION_FAILED, MEMORY_EXCEEDED):
                self.board.release(unit)
                if len(work) == 1:
                    self._give_up(unit, message, "configuration" if code == CONFIGURATION_FAILED else "place")
            elif isinstance(error, SessionLost) or code in RETRY_STATES:
                self._retry(unit, message)
            elif code == "55P03":
                raise MopError(f"a worker session waited in vain for a lock: {message}",
                               hint="Another transaction holds it (see pg_locks), perhaps the one that made this "
                                    "call: COMMIT it first, or raise pg_mop.lock_timeout.", sqlstate="55P03")
            else:
                raise MopError(f"a worker session failed: {message}",
                               detail=getattr(error.diag, "message_detail", None),
                               hint=getattr(error.diag, "message_hint", None), sqlstate=code or "XX000")

    def _replace(self, place):
        """A new session for a place whose own was lost; where none can be had, the others go on without it."""
        if place not in self.board.places:  # it was to go anyway
            self._end(place)
            return
        try:
            self.sessions.fresh(place)
        except MopError as error:
            left = [p for p in self.board.places if p != place and p in self.sessions.by_place]
            if not left:
                raise
            self._end(place)
            self.board.serve(left)
            self.db.warning(f"run {self.run_id} goes on with {len(left)} worker sessions: {error.message}",
                            detail=error.detail)

    def _retry(self, unit, message):
        """Try a unit again after a while, or give its configuration up."""
        lost = self.lost[unit] = self.lost.get(unit, 0) + 1
        if lost > self.retries:
            self.board.release(unit)
            self._give_up(unit, f"given up after {lost} attempts: {message}", "place")
        else:
            first, most = BACK_OFF
            self.resting.append((time.monotonic() + min(most, first * 2 ** (lost - 1)), unit))

    def _give_up(self, unit, message, blame):
        self.failed[unit.mst_key] = message = (
            f"{unit.kind} unit of iteration {unit.iteration} on segment {unit.segment}: {message}")
        self.board.drop(unit.mst_key)
        self.catalog.fail_configuration(self.run_id, unit.mst_key, message, blame)

    def _reached(self):
        """The iteration that every live configuration has reached."""
        board = self.board
        return min((board.iteration(key) for key in board.live), default=board.num_iterations + 1)

    def _report(self):
        board, reached = self.board, self._reached()
        while self.told < reached - 1:
            self.told += 1
            if any(u.iteration == self.told for u in board.finished_units):
                self.on_iteration(self.told)


def _message(error):
    """The primary message of an error from a worker session, without PL/Python's prefix and the context."""
    text = isinstance(error, psycopg2.Error) and error.diag.message_primary or str(error)
    return re.sub(r"^((plpy|spiexceptions)\.\w+: )+", "", text).strip()
