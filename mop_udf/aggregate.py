"""The backend's side of a unit: the trainer that this session holds, and the aggregate mop_sub_epoch that feeds it.

The only module here that sees `plpy`; standard library only. One :class:`Session` is kept from call to call.
"""

import json
import re
from contextlib import contextmanager

import mop_udf
from mop_udf.errors import raise_error
from mop_udf.process import MemoryExceeded, Trainer, TrainerError, TrainerLost

# SQLSTATEs by which the coordinator tells what to do with a failed unit
CONFIGURATION_FAILED = "MOP01"  # it is the configuration's fault: do not try again
TRAINER_LOST = "MOP02"  # the trainer ended: try again
SOURCE_CHANGED = "MOP03"  # the run cannot go on
MEMORY_EXCEEDED = "MOP04"  # it needs more memory than a limit allows: to be tried again once that is raised

SHAPE = re.compile(r"-?\d+")


class Session:
    """The trainer of a database session and the unit that it is working on."""

    def __init__(self, plpy, home):
        self.plpy, self.home = plpy, home
        self.trainer = None
        self.wanted = None  # the options that it was asked for with
        self.units = 0  # that it has begun
        self.unit = None
        self.taking = False  # states of it are still to come
        self.sent = None  # (epoch, buffer) of it that was sent last
        self.schema = None  # the extension's, quoted, once it has been asked for
        self.plans = {}  # (sql, types) -> prepared plan
        self.steps = None  # Greenplum: the coroutine of the unit, whose SQL is run from outside
        self.coming = None  # what to do while the trainer works on the unit
        self.ahead = {}  # (run_id, stage, version) -> parts of a model state that has been read ahead
        self.lent = {}  # pickles of custom functions for the unit that comes, by name: at a place of Greenplum

    def query(self, sql, types=(), values=(), cursor=False):
        """Run SQL by a plan that is kept for the next time: its rows, or with `cursor` one by one."""
        key = (sql, *types)
        if key not in self.plans:
            if len(self.plans) >= 200:
                self.plans.clear()
            self.plans[key] = self.plpy.prepare(sql, list(types))
        return (self.plpy.cursor if cursor else self.plpy.execute)(self.plans[key], list(values))

    def check_interrupts(self):
        """Let PostgreSQL see interrupts: a cancel is raised from here."""
        self.plpy.execute("SELECT 1")

    def start_trainer(self, options, limits, look_again=False):
        """Start a trainer with `options` unless one runs that was started with the same; does not wait for it.

        `limits`: its `allowed(options)` gives the options that it may have, and its `admit(trainer)` raises where it is
        one too many. They are asked for a new trainer and, with `look_again`, for the one that runs.
        """
        if self.trainer is not None and (
            self.wanted != options
            or not self.trainer.alive()
            or look_again
            and limits.allowed(options) != self.trainer.options
        ):
            self.stop_trainer()
        if self.trainer is None:
            self.trainer, self.wanted, self.units = (
                Trainer(self.home, limits.allowed(options), self.check_interrupts),
                options,
                0,
            )
            look_again = True
        if look_again:
            try:
                limits.admit(self.trainer)
            except BaseException:
                self.stop_trainer()
                raise
        return self.trainer

    def stop_trainer(self):
        trainer, self.trainer, self.unit = self.trainer, None, None
        if trainer is not None:
            trainer.kill()

    def holds(self, dataset, nbytes, keep):
        """Whether the trainer holds the rows of a dataset of `nbytes`, or can keep them besides those of `keep`; else
        they are sent for each epoch anew: `keeps_rows` of the unit's header."""
        trainer = self.trainer
        if dataset in trainer.datasets:
            return True
        trainer.send({"op": "capacity", "nbytes": nbytes, "keep": keep})
        answer, _ = trainer.receive()
        trainer.datasets = set(answer["datasets"])
        return answer["fits"]

    def begin(self, unit, models, states, objects):
        """Hand the trainer a unit (its header), what differs between its models (a list of dicts), the model states and
        the pickles of the models' custom functions: {name: bytes} for each.

        `states` gives (stage, bytes) for every part; none: start from the seed; None: `give` does, later.

        Adds to the header what follows from the trainer's cache: `sends_rows`, whether rows follow, and `epochs_sent`,
        how often they follow (they are sent for each epoch where they cannot be kept: for one model).
        """
        trainer = self.trainer
        self.units += 1
        sends = unit["dataset"] not in trainer.datasets
        epochs = models[0]["epochs"] if sends and not unit["keeps_rows"] else 1
        self.unit = {
            **unit,
            "sends_rows": sends,
            "epochs_sent": epochs,
            "models": [{**model, "objects": list(own)} for model, own in zip(models, objects)],
        }
        trainer.send({**self.unit, "op": "unit"}, *(data for own in objects for data in own.values()), more=True)
        self.taking, self.sent = True, None
        if states is not None:
            for stage, part in states:
                self.give(stage, part)
            self._end_states()

    def give(self, stage, part):
        """Send a part of a state; what follows the last one tells that it was the last."""
        self.trainer.send({"op": "state", "stage": stage}, part, more=True)

    def _end_states(self):
        if self.taking:
            self.taking = False
            self.trainer.send({"op": "states_end"}, more=True)

    def rows(self, epoch, buffer, columns, shapes):
        """Send one packed buffer."""
        self._end_states()
        if self.sent is not None and (epoch, buffer) <= self.sent:
            raise_error(
                self.plpy,
                f"buffer {buffer} of epoch {epoch} comes after buffer {self.sent[1]} of epoch "
                f"{self.sent[0]}: the server does not keep the rows' order",
                "XX000",
            )
        self.sent = epoch, buffer
        self.trainer.send(
            {
                "op": "rows",
                "epoch": epoch,
                "buffer": buffer,
                "shapes": [[int(n) for n in SHAPE.findall(s)] for s in shapes],
            },
            *columns,
        )

    def end(self):
        """End the rows and wait for the unit's report (dict)."""
        self._end_states()
        self.trainer.send({"op": "end"})
        if self.coming is not None:
            coming, self.coming = self.coming, None
            coming()
        try:
            report, _ = self.trainer.receive()
        except TrainerError as error:  # an answer, too: the trainer goes on
            self.trainer.datasets, self.unit = set(error.datasets), None
            raise
        self.trainer.datasets = set(report["datasets"])
        self.unit = None
        return report

    def score(self, number, sums):
        """{"loss", "metric", "metrics", "rows"} of the last evaluation's model `number` from sums over all its rows."""
        self.trainer.send({"op": "score", "number": number, "sums": sums})
        return self.trainer.receive()[0]

    def save(self, numbers):
        """The states of the models `numbers` after the last unit, part after part: (number, bytes)."""
        self.trainer.send({"op": "save", "numbers": numbers})
        last = False
        try:
            while not last:
                header, part = self.trainer.receive(joined=True)
                last = header["last"]
                yield header["number"], bytes(part)
        finally:
            if not last:  # parts are still to come that nobody will wait for
                self.stop_trainer()


def session(plpy):
    """The :class:`Session` of this database session: a backend has one Python, and so these modules, from its start to
    its end, whatever client it serves."""
    global _session
    if _session is None:
        _session = Session(plpy, mop_udf.home)
    return _session


_session = None


@contextmanager
def failures_as_sql(plpy, holder):
    """Turn a trainer's failure into a PostgreSQL error whose SQLSTATE tells the coordinator what to do."""
    try:
        yield
        return
    except TrainerError as error:
        message, state = str(error), CONFIGURATION_FAILED if error.configuration else TRAINER_LOST
        if isinstance(error, MemoryExceeded):
            # what the trainer held may be of units before: a new one tells
            state = MEMORY_EXCEEDED if holder.units <= 1 else TRAINER_LOST
            holder.stop_trainer()
    except TrainerLost as error:
        holder.stop_trainer()
        message, state = str(error), TRAINER_LOST
    raise_error(plpy, message, state)


def transition(plpy, state, epoch, buffer, columns, shapes):
    """mop_sub_epoch's transition: send a buffer as it is read, so that reading and training overlap.

    `columns`: bytea[], inputs then outputs; `shapes`: text[], as PostgreSQL prints integer[]. Returns the number of
    buffers sent.
    """
    holder = working(plpy)
    with failures_as_sql(plpy, holder):
        holder.rows(epoch, buffer, columns, shapes)
    return state + 1


def final(plpy, state):
    """mop_sub_epoch's end: wait for the trainer; returns the unit's report as JSON text."""
    holder = working(plpy)
    with failures_as_sql(plpy, holder):
        return json.dumps(holder.end())


def working(plpy):
    """The session, which must be within a unit."""
    holder = session(plpy)
    if holder.unit is None:
        plpy.error("mop_sub_epoch is called by pg_mop itself, within a training unit")
    return holder
