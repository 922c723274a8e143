"""What an administrator allows a role (table mop_limit), applied where a trainer is started: in the very session that
starts it, whoever says with which options."""

import os

from pg_mop.database import MopError
from pg_mop.settings import BACKENDS


def allowed(plpy, schema, options, lock=False):
    """A trainer's options within the calling role's limits; `schema`: the extension's, quoted.

    `lock`: sessions that start trainers at the same time count one after the other; for short transactions. Raises
    MopError where the role's sessions have as many trainers as they may.
    """
    for name, least in (("threads", 1), ("memory_mb", 1), ("model_mb", 1), ("cache_mb", 0), ("idle_ms", 0), ("gpu", 0)):
        value = options.get(name)
        if value is None and name in ("memory_mb", "model_mb", "gpu"):
            continue
        if type(value) is not int or not least <= value < 1 << 31:
            raise MopError(f"invalid option of a trainer: {name} = {value!r}")
    if options.get("keras_backend") not in BACKENDS:
        raise MopError(f"invalid option of a trainer: keras_backend = {options.get('keras_backend')!r}")
    limits = plpy.execute(f"SELECT * FROM {schema}.mop_limits()")[0]
    if limits["sessions"] is not None:
        if lock:
            plpy.execute(f"SELECT {schema}.mop_lock_limits()")
        others = {row["pid"] for row in plpy.execute(f"SELECT pid FROM {schema}.mop_backends()")} - {os.getpid()}
        if (count := _children(others)) >= limits["sessions"]:
            raise MopError(f"the role's sessions have {count} trainers, as many as it may have at once",
                           detail="The table mop_limit says so; idle trainers end with the session that called, or "
                                  "after pg_mop.session_idle_timeout.", sqlstate="53000")
    within = dict(options)
    for name, limit in (("threads", "threads"), ("memory_mb", "trainer_memory_mb"), ("model_mb", "max_model_mb")):
        values = [v for v in (options.get(name), limits[limit]) if v is not None]
        within[name] = min(values, default=None)
    return within


def _children(pids):
    """How many trainers are children of these processes."""
    count = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if b"mop_udf.trainer" not in file.read().split(b"\0"):
                        continue
                with open(f"/proc/{entry}/stat") as file:
                    count += int(file.read().rsplit(")", 1)[1].split()[1]) in pids
            except OSError:  # it has ended
                continue
    return count
