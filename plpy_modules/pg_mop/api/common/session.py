"""SQL functions that use the trainer of the calling session."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mop_udf import aggregate
from mop_udf.aggregate import DEVICE_FULL, Session
from mop_udf.pool.patience import Patience
from mop_udf.pool.process import DeviceFull, Trainer, TrainerError, TrainerLost
from pg_mop.backend import settings
from pg_mop.backend.caller import extension_schema
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.limits import Limits
from pg_mop.backend.quoting import quote_identifier

if TYPE_CHECKING:
    from pg_mop.inference import forward
    from pg_mop.inference.named_model import NamedModel

# Milliseconds that a session keeps an idle trainer. Calls give theirs back at their end; the functions that a query may
# call for each row keep it for the next row.
IDLE_MS = 10_000
# Seconds that a call waits for the memory of its device: the trainer that another session keeps for a next row is back by then.
WAIT_SECONDS, LOOK_SECONDS = 12.0, 0.2

_depth = 0  # calls under way: a query that a call runs may call another


def with_trainer(function: Callable[..., Any] | None = None, *, keeps: bool = False) -> Callable[..., Any]:
    """Make `function(db, session, *args)` callable from an SQL shim as ``function(plpy, *args)``.

    `session`: the mop_udf.aggregate.Session of the calling database session, which leases its trainer. The call ends by
    giving the trainer back, unless it `keeps` the trainer for the next call of the same query.
    """
    if function is None:
        return functools.partial(with_trainer, keeps=keeps)

    @functools.wraps(function)
    def shim(plpy: Any, *args: Any) -> Any:
        global _depth
        session = aggregate.session(plpy)
        _depth += 1
        try:
            return sql_function(functools.wraps(function)(lambda db, *a: function(db, session, *a)))(plpy, *args)
        finally:
            _depth -= 1
            if not (keeps or _depth):
                session.give_back()

    return shim


def give_back_at_end(session: Session) -> None:
    """In a call that keeps the trainer: give it back nevertheless, unless a query of another call has made this one."""
    if _depth == 1:
        session.give_back()


class trainer_of:
    """Context manager: the session's trainer, started with `options`; its failures become MopErrors."""

    def __init__(self, session: Session, options: Mapping[str, Any]) -> None:
        self.session, self.options = session, options

    def __enter__(self) -> Trainer:
        plpy, patience = self.session.plpy, Patience(WAIT_SECONDS)
        limits = Limits(plpy, quote_identifier(extension_schema(plpy)))
        while True:
            try:
                return self.session.start_trainer(self.options, limits)
            except (TrainerError, TrainerLost) as error:  # a role with a number of trainers waits for its trainer here
                if not isinstance(error, DeviceFull) or patience.over():
                    raise self._as_mop_error(error) from None
            plpy.execute(f"SELECT pg_catalog.pg_sleep({LOOK_SECONDS})")  # a cancel ends it

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            return
        if self.session.unit is not None or isinstance(error, TrainerLost):
            self.session.stop_trainer()
        if isinstance(error, (TrainerError, TrainerLost)):
            raise self._as_mop_error(error) from None

    def _as_mop_error(self, error: BaseException) -> MopError:
        if not isinstance(error, DeviceFull):
            return MopError(str(error), sqlstate="22000")
        schema = quote_identifier(extension_schema(self.session.plpy))
        return MopError(
            str(error),
            hint=f"SELECT role, pid, state FROM {schema}.mop_trainers; shows the trainers that hold it. Call again once "
            "they have ended.",
            sqlstate=DEVICE_FULL,
        )


@contextlib.contextmanager
def computer_of(
    db: Database, session: Session, model: NamedModel, check_names: bool = True
) -> Iterator[Trainer | forward.Net]:
    """Context manager: what computes a named model: its own net where that is possible in this process, else the session's
    trainer, which holds the model. `check_names`: as of settings.load."""
    net = model.net(db)
    if net is not None:
        yield net
        return
    with trainer_of(session, trainer_options(db, False, check_names)) as trainer:
        model.lent_to(db, trainer)
        yield trainer


def trainer_options(db: Database, use_gpus: bool | None, check_names: bool = True) -> dict[str, Any]:
    """Options for a trainer of the calling session. Raises MopError: no GPU, bad settings (`check_names`: as of
    settings.load)."""
    options = settings.load(db, check_names)
    settings.check_installed(options["keras_backend"])
    gpus = settings.gpus(options["keras_backend"]) if use_gpus else 0
    if use_gpus and not gpus and options["trainers"]:
        db.notice("this server has no GPU: the calling session's own trainer works without")
    elif use_gpus and not gpus:
        raise settings.no_gpu(options["keras_backend"])
    return options_of_trainer(options, settings.cores(), 0 if gpus else None)


def options_of_trainer(options: Mapping[str, Any], cores: int, gpu: int | None) -> dict[str, Any]:
    """Start options for a trainer of the calling session.

    `options`: from settings.load; `cores`: the number of threads if pg_mop.threads is unset; `gpu`: a number, or None.
    """
    return {
        "threads": options["threads"] or cores,
        "keras_backend": options["keras_backend"],
        "cache_mb": options["cache_mb"],
        "memory_mb": options["trainer_memory_mb"],
        "model_mb": options["max_model_mb"],
        "gpu": gpu,
        "idle_ms": min(options["session_idle_timeout"] or IDLE_MS, IDLE_MS),
        "keep_ms": options["session_idle_timeout"],
        "fork_server_ms": options["fork_server_idle_timeout"],
        "compile_cache_mb": options["compile_cache_mb"],
    }
