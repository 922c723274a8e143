"""The backend's side of a unit: the session's trainer, and the aggregate mop_sub_epoch that feeds it.

Only this module of mop_udf uses `plpy`. Standard library only. One :class:`Session` lives from call to call.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mop_udf
from mop_udf.errors import raise_error
from mop_udf.pool.process import DeviceFull, MemoryExceeded, Trainer, TrainerError, TrainerLost
from mop_udf.pool.serving_client import Served

if TYPE_CHECKING:
    from mop_udf.unit_spec import UnitHeader, UnitModel, UnitRequest

# SQLSTATEs that tell the coordinator how to handle a failed unit
CONFIGURATION_FAILED = "MOP01"  # the configuration is to blame: do not retry
TRAINER_LOST = "MOP02"  # the trainer ended: retry
SOURCE_CHANGED = "MOP03"  # the run cannot continue
MEMORY_EXCEEDED = "MOP04"  # the unit needs more memory than a limit allows: retry after the limit is raised
# (MOP05: pg_mop/inference/at_segments.py)
DEVICE_FULL = "MOP06"  # other trainers hold the memory of the device: retry later
DEVICE_MEMORY = "MOP07"  # the unit needs more memory than its part of the device: retry with a larger part

SHAPE = re.compile(r"-?\d+")


class Session:
    """The trainer of a database session, the trainer's current unit, and the serving process that answers the session."""

    def __init__(self, plpy: Any, home: str) -> None:
        self.plpy, self.home = plpy, home
        self.served = Served(home, self.check_interrupts)
        self.trainer: Trainer | None = None
        self.wanted: Mapping[str, Any] | None = None  # the options that the caller requested for it
        self.caller: Any = None  # the role that requested it
        self.units = 0  # units begun by this session's trainer
        self.needs_fresh = False  # the next trainer must not have had another lease
        self.unit: UnitRequest | None = None
        self.expects_states = False  # more parts of the unit's states follow
        self.last_sent: tuple[int, int] | None = None  # (epoch, buffer) sent last for the unit
        self.schema: str | None = None  # quoted name of the extension's schema, after the first look-up
        self.plans: dict[tuple[str, ...], Any] = {}  # (sql, types) -> prepared plan
        self.steps: Any = None  # Greenplum: the coroutine of the unit; the caller runs its SQL
        self.coming: Callable[[], None] | None = None  # called while the trainer works on the unit
        self.ahead: dict[
            tuple[int, int, int], list[bytes]
        ] = {}  # (run_id, stage, version) -> parts of a model state that was read ahead
        self.host_segment: int | None = None  # Greenplum: that whose process has this session's trainer (its dist_key)
        self.host_segments: set[int] = set()  # Greenplum: those that know the fork server of their host
        self.lent: dict[str, bytes] = {}  # Greenplum: pickles of custom functions for the next unit, by name

    def query(self, sql: str, types: Sequence[str] = (), values: Sequence[Any] = (), cursor: bool = False) -> Any:
        """Run SQL by a prepared plan, kept for the next call: its rows, or a cursor if `cursor` is true."""
        key = (sql, *types)
        if key not in self.plans:
            if len(self.plans) >= 200:
                self.plans.clear()
            self.plans[key] = self.plpy.prepare(sql, list(types))
        return (self.plpy.cursor if cursor else self.plpy.execute)(self.plans[key], list(values))

    def running(self) -> Trainer:
        """The trainer, which has been started."""
        assert self.trainer is not None
        return self.trainer

    def check_interrupts(self) -> None:
        """Let PostgreSQL process interrupts; raises an error on a cancel."""
        self.plpy.execute("SELECT 1")

    def start_trainer(
        self, options: Mapping[str, Any], limits: Any, look_again: bool = False, wants: Mapping[str, Any] | None = None
    ) -> Trainer:
        """Lease or start a trainer with `options`, without waiting for a new one, unless the session has such a trainer.

        A role does not get the trainer that another role has left in the session, as after SET ROLE. `limits.caller()` is the
        role, `limits.allowed(options)` gives the permitted options. `limits.admit(trainer)` raises an error where the trainer
        is one too many. These two are called for a new trainer and, if `look_again` is true, for a running trainer. `wants`:
        see process.Trainer.
        """
        caller, left = limits.caller(), None
        if self.trainer is not None and (
            self.wanted != options
            or self.caller != caller
            or not self.trainer.alive()
            or look_again
            and limits.allowed(options) != self.trainer.options
        ):
            left = self._pid()
            self.give_back()
        if self.trainer is None:
            self.trainer = Trainer(self.home, limits.allowed(options), self.check_interrupts, wants, self.needs_fresh)
            self.wanted, self.caller, self.needs_fresh = options, caller, False
            self.trainer.replaces = left
            self.units = 0
            look_again = True
        if look_again:
            try:
                limits.admit(self.trainer)
            except BaseException:
                self.stop_trainer()
                raise
        return self.trainer

    def _pid(self) -> int | None:
        """The process ID of the trainer; None if it has ended."""
        try:
            return self.running().pid
        except TrainerLost:
            return None

    def give_back(self) -> None:
        """End the lease of the trainer: it returns to the pool if it is idle, else it ends."""
        if self.unit is not None:
            self.stop_trainer()
        trainer, self.trainer = self.trainer, None
        if trainer is not None:
            trainer.give_back()

    def stop_trainer(self) -> None:
        trainer, self.trainer, self.unit = self.trainer, None, None
        if trainer is not None:
            trainer.kill()

    def holds(self, dataset: str | None, nbytes: int, keep: Sequence[str]) -> bool:
        """True where the trainer holds the rows of a dataset of `nbytes`, or can keep them besides the datasets of
        `keep`.

        Otherwise the rows are sent again for each epoch. The result becomes `keeps_rows` of the unit's header.
        """
        trainer = self.running()
        if dataset in trainer.datasets:
            return True
        trainer.send({"op": "capacity", "nbytes": nbytes, "keep": keep})
        answer, _ = trainer.receive()
        trainer.datasets = set(answer["datasets"])
        return answer["fits"]

    def begin(
        self,
        unit: UnitHeader,
        models: Sequence[UnitModel],
        states: Iterable[tuple[int, Any]] | None,
        objects: Sequence[Mapping[str, bytes]],
        then: Sequence[dict[str, Any]] = (),
    ) -> UnitRequest:
        """Send the trainer a unit: its header, its models, the model states and the custom functions.

        `objects`: {name: pickle} for each model. `states` yields (stage, bytes) for every part of a state. Without
        parts, training starts from the seed; with None, the caller sends the parts by `give`. `then`: see UnitRequest.

        Decides `sends_rows` and `epochs_sent`, depending on the trainer's cache. Rows that the trainer cannot keep are sent
        for each epoch; such a unit has one model. A unit of kind "load", without models, has its rows kept for a chain.
        """
        from mop_udf.unit_spec import UnitHeader, UnitRequest  # (a session that asks models alone needs no unit)

        trainer = self.running()
        self.units += unit.kind != "load"
        sends = unit.dataset not in trainer.datasets
        epochs = models[0].epochs if models and sends and not unit.keeps_rows else 1
        common = {f.name: getattr(unit, f.name) for f in dataclasses.fields(UnitHeader)}
        named = [dataclasses.replace(model, objects=list(own)) for model, own in zip(models, objects)]
        request = UnitRequest(**{**common, "sends_rows": sends, "epochs_sent": epochs}, models=named, then=list(then))
        self.unit = request
        trainer.has_run_code = trainer.has_run_code or any(objects)
        trainer.send(
            {**request.to_json(), "op": "unit"}, *(data for own in objects for data in own.values()), more=True
        )
        self.expects_states, self.last_sent = True, None
        if states is not None:
            for stage, part in states:
                self.give(stage, part)
            self._end_states()
        return request

    def give(self, stage: int, part: Any) -> None:
        """Send a part of a state. The next frame after the last part ends the states."""
        self.running().send({"op": "state", "stage": stage}, part, more=True)

    def _end_states(self) -> None:
        if self.expects_states:
            self.expects_states = False
            self.running().send({"op": "states_end"}, more=True)

    def rows(self, epoch: int, buffer: int, columns: Sequence[bytes], shapes: Sequence[str]) -> None:
        """Send one packed buffer."""
        self._end_states()
        if self.last_sent is not None and (epoch, buffer) <= self.last_sent:
            raise_error(
                self.plpy,
                f"buffer {buffer} of epoch {epoch} comes after buffer {self.last_sent[1]} of epoch "
                f"{self.last_sent[0]}: the server does not keep the rows' order",
                "XX000",
            )
        self.last_sent = epoch, buffer
        self.running().send(
            {
                "op": "rows",
                "epoch": epoch,
                "buffer": buffer,
                "shapes": [[int(n) for n in SHAPE.findall(s)] for s in shapes],
            },
            *columns,
        )

    def end(self) -> dict[str, Any]:
        """End the rows, and wait for the unit's report (dict)."""
        self._end_states()
        trainer = self.running()
        trainer.send({"op": "end"})
        if self.coming is not None:
            coming, self.coming = self.coming, None
            coming()
        try:
            report, _ = trainer.receive()
        except TrainerError as error:  # an error is an answer as well: the trainer continues
            if error.datasets is not None:
                trainer.datasets = set(error.datasets)
            self.unit = None
            raise
        trainer.datasets = set(report["datasets"])
        self.unit = None
        return report

    def score(self, number: int, sums: Sequence[float]) -> dict[str, Any]:
        """{"loss", "metric", "metrics", "rows"} of model `number` in the last evaluation, from sums over all its rows."""
        self.running().send({"op": "score", "number": number, "sums": sums})
        return self.running().receive()[0]

    def save(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield the states of the models `numbers` after the last unit, in parts: (number, bytes)."""
        self.running().send({"op": "save", "numbers": numbers})
        last = False
        try:
            while not last:
                header, part = self.running().receive(joined=True)
                last = header["last"]
                yield header["number"], bytes(part)
        finally:
            if not last:  # the remaining parts would be taken for the next answer
                self.stop_trainer()


def session(plpy: Any) -> Session:
    """The :class:`Session` of this database session.

    A backend has one Python interpreter from its start to its end, and so one copy of these modules.
    """
    global _session
    if _session is None:
        _session = Session(plpy, mop_udf.home)
    return _session


_session: Session | None = None


@contextmanager
def failures_as_sql(plpy: Any, holder: Session) -> Iterator[None]:
    """Turn a trainer's failure into a PostgreSQL error; its SQLSTATE tells the coordinator how to continue."""
    try:
        yield
        return
    except TrainerError as error:
        message, state = str(error), CONFIGURATION_FAILED if error.configuration else TRAINER_LOST
        if isinstance(error, MemoryExceeded):
            # earlier units may have filled the memory: only a new trainer can tell
            earlier = holder.units - 1 + (holder.trainer is not None and holder.trainer.was_leased)
            state = TRAINER_LOST if earlier > 0 else DEVICE_MEMORY if error.part else MEMORY_EXCEEDED
            holder.stop_trainer()
            holder.needs_fresh = True
    except TrainerLost as error:
        holder.stop_trainer()
        message, state = str(error), DEVICE_FULL if isinstance(error, DeviceFull) else TRAINER_LOST
    raise_error(plpy, message, state)


def transition(plpy: Any, state: int, epoch: int, buffer: int, columns: Sequence[bytes], shapes: Sequence[str]) -> int:
    """The transition function of mop_sub_epoch: send a buffer as it is read, so reading and training overlap.

    `columns`: bytea[], inputs, outputs and sample weights; `shapes`: text[], integer arrays as PostgreSQL prints them.
    Returns the number of buffers sent.
    """
    holder = working(plpy)
    with failures_as_sql(plpy, holder):
        holder.rows(epoch, buffer, columns, shapes)
    return state + 1


def final(plpy: Any, state: int) -> str:
    """The final function of mop_sub_epoch: wait for the trainer; returns the unit's report as JSON text."""
    holder = working(plpy)
    with failures_as_sql(plpy, holder):
        return json.dumps(holder.end())


def working(plpy: Any) -> Session:
    """The session. Raises a PostgreSQL error outside a training unit."""
    holder = session(plpy)
    if holder.unit is None:
        plpy.error("mop_sub_epoch is called by pg_mop itself, within a training unit")
    return holder
