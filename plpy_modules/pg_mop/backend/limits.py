"""A role's limits (table mop_limit), enforced in the session that starts a trainer, for options of any origin."""

import os

from pg_mop.backend.errors import MopError
from pg_mop.backend.ray_cluster import cluster
from pg_mop.backend.settings import BACKENDS, check_installed

TOO_MANY_TRAINERS = "53000"


class Limits:
    """The limits of the calling role."""

    def __init__(self, plpy, schema):
        """`schema`: the extension's, quoted."""
        self.plpy, self.schema = plpy, schema

    def _find(self):
        return self.plpy.execute(
            f"SELECT *, {self.schema}.mop_role(current_user)::bigint AS role FROM {self.schema}.mop_limits()"
        )[0]

    def _backends(self):
        """Process ids of the role's sessions."""
        return {row["pid"] for row in self.plpy.execute(f"SELECT pid FROM {self.schema}.mop_backends()")}

    def allowed(self, options):
        """A trainer's options, reduced to the limits. Raises MopError for invalid options."""
        for name, least in (
            ("threads", 1),
            ("memory_mb", 1),
            ("model_mb", 1),
            ("cache_mb", 0),
            ("idle_ms", 0),
            ("fork_server_ms", 0),
            ("compile_cache_mb", 0),
            ("gpu", 0),
        ):
            value = options.get(name)
            if value is None and name in ("memory_mb", "model_mb", "fork_server_ms", "compile_cache_mb", "gpu"):
                continue
            if type(value) is not int or not least <= value < 1 << 31:
                raise MopError(f"invalid option of a trainer: {name} = {value!r}")
        if options.get("keras_backend") not in BACKENDS:
            raise MopError(f"invalid option of a trainer: keras_backend = {options.get('keras_backend')!r}")
        if options.get("trainers") is None:
            check_installed(options["keras_backend"])
        limits, within = self._find(), {name: value for name, value in options.items() if name != "ray"}
        within["role"] = int(limits["role"])  # from the server, never from the client
        if options.get("trainers") is not None:
            within["ray"] = cluster(self.plpy, options["trainers"])
            within["ray"]["gpus"] *= bool(options.get("use_gpus"))
            within["threads"] = max(1, int(within["ray"]["cpus"]))
        for name, limit in (("threads", "threads"), ("memory_mb", "trainer_memory_mb"), ("model_mb", "max_model_mb")):
            values = [v for v in (options.get(name), limits[limit]) if v is not None]
            within[name] = min(values, default=None)
        return within

    def admit(self, trainer):
        """Raises MopError if a Trainer, already started, exceeds the role's number of trainers.

        Only trainers that started earlier count, so of several simultaneous starts the allowed number succeeds.
        """
        most = self._find()["sessions"]
        if most is None:
            return
        try:
            started = _start_of(trainer.pid)[0]
        except OSError:  # the trainer has ended; the channel reports it
            return
        before = sum(other < started for other in _trainers(self._backends()))
        if before >= most:
            raise MopError(
                f"the role's sessions have {before} trainers, as many as it may have at once",
                detail="The table mop_limit sets the number. Idle trainers end with the client's session, or "
                "after pg_mop.session_idle_timeout.",
                sqlstate=TOO_MANY_TRAINERS,
            )


def _start_of(pid):
    """((start time, PID), which orders processes by their start; the parent's PID; the state's letter).

    Raises OSError.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rsplit(b")", 1)[1].split()
    return (int(fields[19]), int(pid)), int(fields[1]), fields[0]


def _trainers(backends):
    """(start time, PID) of each trainer of these backends (PIDs)."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                started, parent, state = _start_of(entry)
                if state in b"ZX" or os.stat(f"/proc/{entry}").st_uid != os.geteuid():
                    continue
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read().replace(b" ", b"\0").split(b"\0")
                # Until its exec, a child has its backend's command line, and for an instant none.
                modules = [n for n, word in enumerate(words) if word in (b"mop_udf.trainer", b"mop_udf.relay")]
                backend = parent if words[0] in (b"", b"postgres:") else int(words[modules[0] + 1])
            except (OSError, ValueError, IndexError):  # ended, or not a trainer
                continue
            if backend in backends:
                yield started
