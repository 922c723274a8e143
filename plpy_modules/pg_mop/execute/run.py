"""The event loop: gives every worker session that falls idle the scheduler's next unit, until the run is done."""

import json
import re
import time

import psycopg2

from mop_udf.aggregate import CONFIGURATION_FAILED, TRAINER_LOST
from pg_mop.database import MopError, quote_literal
from pg_mop.execute.sessions import SessionLost, wait

TOGETHER_BYTES = 256 << 20  # of the states of models that are evaluated together
AHEAD_BYTES = 1 << 20, 256 << 20  # least and most of a state that is read while the unit before it trains
ATTEMPTS = 4  # of one unit, before its configuration is given up
RETRY_STATES = (TRAINER_LOST, "40001", "40P01")


class Executor:
    """Runs a board's units on worker sessions.

    `describe(units, place)` gives what the worker session at a place needs to know of units that it does together
    (a dict, see execute/unit.py);
    `on_iteration(i)` is called once every live configuration has been through iteration i.
    """

    def __init__(self, db, catalog, sessions, run_id, board, scheduler, describe, on_iteration, lock_timeout):
        self.db, self.catalog, self.sessions = db, catalog, sessions
        self.run_id, self.board, self.scheduler = run_id, board, scheduler
        self.describe, self.on_iteration, self.lock_timeout = describe, on_iteration, lock_timeout
        self.attempts = {}      # unit -> attempts begun
        self.versions = {}      # mst_key -> version of its model state
        self.bytes = {}         # mst_key -> bytes of its model state, the same in every version
        self.failed = {}        # mst_key -> message
        self.alone = set()      # units that are evaluated each for itself
        self.waiting_since = {} # unit -> when it could have run first (seconds since the epoch)
        self.told = 0           # iterations reported

    def go(self):
        """Run until no configuration has work left. Raises MopError where the whole run cannot go on."""
        self._dispatch()
        while not self.board.done:
            busy = [s for s in self.sessions.by_place.values() if s.work]
            if not busy:
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
            self._dispatch()
        self._report()

    def _dispatch(self):
        now = time.time()
        for place, session in sorted(self.sessions.by_place.items()):
            if session.work:
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
        sizes = self._state_bytes(units)
        total, chosen = 0, []
        for u in units:
            total += sizes[u.mst_key]
            if chosen and total > TOGETHER_BYTES:
                break
            chosen.append(u)
        return chosen

    def _state_bytes(self, units):
        """{mst_key: bytes of its model state} of the units' configurations; 0 where that is not known yet."""
        unknown = {u.mst_key: self.versions[u.mst_key] for u in units
                   if u.mst_key not in self.bytes and self.versions.get(u.mst_key)}
        if unknown:
            self.bytes.update(self.catalog.state_bytes(self.run_id, unknown.items()))
        return {u.mst_key: self.bytes.get(u.mst_key, 0) for u in units}

    def _coming(self, place):
        """The model whose state the session at `place` may read while it trains another; None where it is not known.

        Others leave it to this place as long as they have others.
        """
        unit = self.scheduler.coming(place)
        least, most = AHEAD_BYTES
        if unit is None or not least <= self._state_bytes([unit])[unit.mst_key] <= most:
            self.board.reserve(place, None)
            return None
        self.board.reserve(place, unit.mst_key)
        return {"mst_key": unit.mst_key, "version": self.versions[unit.mst_key]}

    def _start(self, session, units):
        rows, models = [], []
        for unit in units:
            attempt = self.attempts[unit] = self.attempts.get(unit, 0) + 1
            rows.append({"run_id": self.run_id, "mst_key": unit.mst_key, "iteration": unit.iteration,
                         "segment": unit.segment, "kind": unit.kind, "dataset": unit.dataset, "attempt": attempt,
                         "queued_at": self.waiting_since.get(unit, time.time())})
            models.append({"mst_key": unit.mst_key, "iteration": unit.iteration, "attempt": attempt,
                           "version": self.versions.get(unit.mst_key, 0)})
            self.board.start(unit)
        work = {**self.describe(units, session.place), "run_id": self.run_id, "kind": units[0].kind,
                "dataset": units[0].dataset, "segment": units[0].segment}
        work["coming"] = self._coming(session.place)
        work["models"] = [{**model, **more} for model, more in zip(models, work["models"])]
        session.work, session.since = list(zip(units, rows)), time.monotonic()
        begin = "; ".join(self.catalog.begin_unit_sql(row) for row in rows)
        try:
            session.begin(
                f"ROLLBACK; SET lock_timeout = {self.lock_timeout}; BEGIN; {begin}; COMMIT; "
                f"BEGIN; SELECT {self.db.extension}.mop_run_unit({quote_literal(json.dumps(work))}); COMMIT")
        except SessionLost as error:
            work, session.work = session.work, []
            self._failed(session, work, error)

    def _finished(self, unit):
        self.board.finish(unit)
        if unit.kind == "train":
            self.versions[unit.mst_key] = self.versions.get(unit.mst_key, 0) + 1

    def _failed(self, session, work, error):
        """Retry, give the configuration up, or stop the run, as the error says."""
        code = getattr(error, "pgcode", None)
        message = _message(error)
        if isinstance(error, SessionLost):
            self.sessions.fresh(session.place)
        if len(work) > 1:  # one of them may be to blame: from now on each is evaluated for itself
            self.alone |= {unit for unit, _ in work}
        for unit, row in work:
            if isinstance(error, SessionLost) and self.catalog.unit_is_finished(row):
                self._finished(unit)
                continue
            self.catalog.fail_unit(row, message)
            self.board.release(unit)
            if code == CONFIGURATION_FAILED:
                if len(work) == 1:
                    self._give_up(unit, message)
            elif isinstance(error, SessionLost) or code in RETRY_STATES:
                if self.attempts[unit] >= ATTEMPTS:
                    self._give_up(unit, f"given up after {ATTEMPTS} attempts: {message}")
            elif code == "55P03":
                raise MopError(f"a worker session waited in vain for a lock: {message}",
                               hint="Another transaction holds it (see pg_locks), perhaps the one that made this "
                                    "call: COMMIT it first, or raise pg_mop.lock_timeout.", sqlstate="55P03")
            else:
                raise MopError(f"a worker session failed: {message}",
                               detail=getattr(error.diag, "message_detail", None),
                               hint=getattr(error.diag, "message_hint", None), sqlstate=code or "XX000")

    def _give_up(self, unit, message):
        self.failed[unit.mst_key] = message = (
            f"{unit.kind} unit of iteration {unit.iteration} on segment {unit.segment}: {message}")
        self.board.drop(unit.mst_key)
        self.catalog.fail_configuration(self.run_id, unit.mst_key, message)

    def _report(self):
        board = self.board
        reached = min((board.iteration(key) for key in board.live), default=board.num_iterations + 1)
        while self.told < reached - 1:
            self.told += 1
            if any(u.iteration == self.told for u in board.finished_units):
                self.on_iteration(self.told)


def _message(error):
    """The primary message of an error from a worker session, without PL/Python's prefix and the context."""
    text = isinstance(error, psycopg2.Error) and error.diag.message_primary or str(error)
    return re.sub(r"^((plpy|spiexceptions)\.\w+: )+", "", text).strip()
