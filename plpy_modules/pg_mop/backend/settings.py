"""The `pg_mop.*` settings: defaults, ranges, and errors for bad values and unknown names."""

from __future__ import annotations

import functools
import glob
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mop_udf
from pg_mop.backend import custom_settings
from pg_mop.backend.errors import MopError

if TYPE_CHECKING:
    from pg_mop.backend.database import Database

SCHEDULER = "randomized"  # the default
KERNELS = ("auto", "plain", "loop", "xla", "vmap")
ONLY = {"vmap": "jax"}  # kernel -> the only framework that has it
STRATEGIES = ("averaging", "sequential")
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}  # Keras' name -> the framework's own name
DEVICES = "/dev"


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def gpus(backend: str = "tensorflow") -> int:
    """The number of GPUs that trainers of a framework can use on this machine, counted without loading the framework."""
    return 0 if _is_for_processors(backend) else len(_devices())


def no_gpu(backend: str = "tensorflow") -> MopError:
    """The MopError for a call with use_gpus on a server without usable GPUs."""
    if not _devices():
        return MopError("use_gpus is set, but this server has no GPU", hint="Call with use_gpus => FALSE.")
    install = {
        "tensorflow": "make install FRAMEWORK=cuda",
        "jax": f"sudo {_home()}/bin/pip install 'jax[cuda12]'",
        "torch": f"sudo {_home()}/bin/pip install --force-reinstall torch",
    }[backend]
    return MopError(
        f"use_gpus is set, but the installed {BACKENDS[backend]} is for CPUs only",
        hint=f"On this server: {install}; or call with use_gpus => FALSE.",
        sqlstate="58000",
    )


def check_installed(backend: str) -> None:
    """Raises MopError if a framework is not installed on this server."""
    if is_installed(backend):
        return
    install = "FRAMEWORK=tensorflow" if backend == "tensorflow" else f"WITH={backend}"
    package = "tensorflow-cpu" if backend == "tensorflow" else backend
    other = next((name for name in BACKENDS if is_installed(name)), None)
    raise MopError(
        f'pg_mop.keras_backend is "{backend}", but {BACKENDS[backend]} is not installed on this server',
        hint=f"On this server: {to_install(package, install)}"
        + (f"; or SET pg_mop.keras_backend = '{other}';" if other else "."),
        sqlstate="58000",
    )


def to_install(package: str, argument: str = "") -> str:
    """The commands that install a package on this server; `argument`: of make install."""
    return f"sudo make install{argument and ' '}{argument}, or sudo {_home()}/bin/pip install {package}"


def runnable_threads() -> int:
    """How many threads of this machine compute now, without the calling one; 0 where the system does not tell."""
    try:
        with open("/proc/loadavg") as file:
            return int(file.read().split()[3].partition("/")[0]) - 1
    except OSError:
        return 0


def free_cores() -> int:
    """How many cores no thread of this machine uses now; at least 1."""
    return max(1, cores() - runnable_threads())


def check_kernel(options: Mapping[str, Any]) -> None:
    """Raises MopError if the framework of parsed settings does not have their kernel."""
    kernel, backend = options["kernel"], options["keras_backend"]
    if ONLY.get(kernel, backend) != backend:
        raise MopError(
            f'pg_mop.kernel is "{kernel}", but pg_mop.keras_backend is "{backend}"',
            detail=f"Only {BACKENDS[ONLY[kernel]]} has this kernel.",
            hint=f"SET pg_mop.keras_backend = '{ONLY[kernel]}'; or SET pg_mop.kernel = 'auto';",
            sqlstate="22023",
        )


def _devices() -> list[str]:
    try:
        return [name for name in os.listdir(DEVICES) if re.fullmatch(r"nvidia\d+", name)]
    except OSError:
        return []


def _home() -> str:
    return mop_udf.home or sys.prefix


def _distributions(name: str) -> list[str]:
    """The installed packages of a name; the name may contain *."""
    folders = mop_udf.folders(_home())
    return [path for folder in folders for path in glob.glob(f"{glob.escape(folder)}/{name}-[0-9]*.dist-info")]


_installed: set[tuple[str, str]] = set()  # what has been found: each answer of a model that Keras computes asks


def is_installed(package: str) -> bool:
    """True if a framework, or another package, is installed, under whatever name of a distribution."""
    if (_home(), package) not in _installed and any(
        os.path.isdir(f"{folder}/{package}") for folder in mop_udf.folders(_home())
    ):
        _installed.add((_home(), package))
    return (_home(), package) in _installed


def _is_for_processors(backend: str) -> bool:
    """True if the framework is installed only in its build for CPUs."""
    if backend == "jax":
        return not _distributions("jax_cuda*_plugin")
    if backend == "torch":
        return all("+cpu" in path for path in _distributions("torch"))  # PyPI's build supports GPUs
    return bool(_distributions("tensorflow_cpu") and not _distributions("tensorflow"))


@dataclass(frozen=True)
class Parser:
    """Reads the text of a setting. `read` raises ValueError for a bad text; `texts` describes the good ones."""

    read: Callable[[str], Any]
    texts: str | Callable[[], str]

    @property
    def description(self) -> str:
        """The good texts, for people."""
        return self.texts if isinstance(self.texts, str) else self.texts()


def _number(convert: Callable[[str], float], what: str, low: float, high: float) -> Parser:
    def read(text: str) -> float:
        value = convert(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return Parser(read, f"{what} from {low} to {high}")


_integer = functools.partial(_number, int, "an integer")
_seconds = functools.partial(_number, float, "a number of seconds")


def _read_share(text: str) -> float:
    value = float(text)
    if not 0.001 <= value <= 1.0:
        raise ValueError
    return value


_share = Parser(_read_share, "a share from 0.001 to 1")


def _choice(*names: str) -> Parser:
    def read(text: str) -> str:
        if text.lower() not in names:
            raise ValueError
        return text.lower()

    return Parser(read, "one of " + ", ".join(names))


def _schedulers() -> Parser:
    from pg_mop.schedule import SCHEDULERS

    return _choice(*SCHEDULERS)


def _read_scheduler(text: str) -> Any:
    """The name of a scheduler. They are imported only where another than the default is named: there are many modules."""
    return text if text == SCHEDULER else _schedulers().read(text)


_scheduler = Parser(_read_scheduler, lambda: _schedulers().description)


def _read_switch(text: str) -> bool:
    if text.lower() in ("on", "true", "yes", "1"):
        return True
    if text.lower() in ("off", "false", "no", "0"):
        return False
    raise ValueError


_switch = Parser(_read_switch, "on or off")


def _read_milliseconds(text: str) -> int:
    """A duration as PostgreSQL writes it ('10s', '5min', plain milliseconds) -> milliseconds."""
    match = re.fullmatch(r"\s*(\d+)\s*(ms|s|min|h|d|)\s*", text)
    if not match:
        raise ValueError
    value = int(match[1]) * {"ms": 1, "": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}[match[2]]
    if value > 2**31 - 1:
        raise ValueError
    return value


_milliseconds = Parser(_read_milliseconds, "a duration such as 10s or 5min")


def _read_names(text: str) -> list[str]:
    """'w1, w2' -> list of names."""
    names = [name.strip() for name in text.split(",")]
    if "" in names:
        raise ValueError
    return names


_names = Parser(_read_names, "names of servers, w1, w2, or local for this one")


def _read_name(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text.strip()


_name = Parser(_read_name, "the name of a foreign server")


# only the database can read a time (call/deadline.py)
_time = Parser(_read_name, "a time such as 2030-12-01 08:00, or an interval from now such as 2 hours")

# name -> (parser, default as text; None = determined when used)
KNOWN: dict[str, tuple[Parser, str | None]] = {
    "seed": (_integer(0, 2**31 - 1), None),
    "segments": (_integer(1, 1024), None),
    "servers": (_names, None),
    "replicas": (_integer(1, 16), "1"),
    "trainers": (_name, None),
    "scheduler": (_scheduler, SCHEDULER),
    "chain_seconds": (_seconds(0, 60), "0.5"),
    "cache_mb": (_integer(0, 1 << 30), "1024"),
    "compile_cache_mb": (_integer(0, 1 << 20), "256"),
    "threads": (_integer(1, 1024), None),
    "deal_threads": (_choice("auto", "on", "off"), "auto"),
    "keras_backend": (_choice(*BACKENDS), "tensorflow"),
    "session_idle_timeout": (_milliseconds, "5min"),
    "fork_server_idle_timeout": (_milliseconds, "8h"),
    "serving_processes": (_integer(0, 1000), "2"),
    "lock_timeout": (_milliseconds, "10s"),
    "same_start": (_switch, "on"),
    "sharing": (_switch, "on"),
    "reuse": (_switch, "on"),
    "checkpoint_mb": (_integer(0, 1 << 30), "1024"),
    "kernel": (_choice(*KERNELS), "auto"),
    "share_prefixes": (_switch, "on"),
    "resume": (_switch, "on"),
    "unit_retries": (_integer(0, 1000), "3"),
    "server_timeout": (_milliseconds, "10min"),
    "sessions": (_integer(1, 1000), None),
    "priority": (_integer(-100, 100), "0"),
    "deadline": (_time, None),
    "trainer_memory_mb": (_integer(256, 1 << 30), None),
    "gpu_memory_share": (_share, None),
    "device_memory_mb": (_integer(1, 1 << 30), None),
    "most_devices": (_integer(1, 1024), None),
    "max_model_mb": (_integer(1, 1 << 30), None),
    "weights_value_mb": (_integer(1, 1023), "1023"),
    "fit_strategy": (_choice(*STRATEGIES), "averaging"),
}

ALIASES = {"nursery_idle_timeout": "fork_server_idle_timeout"}  # former name -> present name


def load(db: Database, check_names: bool = True) -> dict[str, Any]:
    """All settings as a dict; raises MopError for a bad value or, with `check_names`, an unknown `pg_mop.*` name."""
    return parsed(given(db, check_names))


def given(db: Database, check_names: bool = True) -> dict[str, str]:
    """{name: text} of the session's settings. `check_names`: look for unknown names.

    '' stands for a setting that was emptied or reset: it counts as unset, but hides the value of the role or the
    database. Raises MopError for an unknown `pg_mop.*` name.
    """
    unknown = sorted(custom_settings.own_names(db) - set(KNOWN) - set(ALIASES)) if check_names else ()
    if unknown:
        raise MopError(
            f'unrecognized setting "pg_mop.{unknown[0]}"',
            detail="The settings are " + ", ".join(f"pg_mop.{n}" for n in KNOWN) + ".",
            hint=f"RESET pg_mop.{unknown[0]};",
            sqlstate="42704",
        )
    if not db.has("current_setting", "text, bool"):
        return _by_present_names({name: db.setting(f"pg_mop.{name}") for name in (*KNOWN, *ALIASES)})
    rows = db.execute(
        "SELECT n, current_setting('pg_mop.' || n, true) AS text FROM unnest($1) AS n", ["text[]"], [[*KNOWN, *ALIASES]]
    )
    return _by_present_names({row["n"]: row["text"] for row in rows})


def _by_present_names(texts: Mapping[str, str | None]) -> dict[str, str]:
    """{name: text} without unset settings; a former name counts if the present name is unset or empty."""
    former = {present: text for name, present in ALIASES.items() if (text := texts.get(name))}
    texts_now = {name: text for name, text in texts.items() if text is not None and name in KNOWN}
    return texts_now | {name: text for name, text in former.items() if not texts_now.get(name)}


def parsed(texts: Mapping[str, str]) -> dict[str, Any]:
    """All settings as a dict, from the given texts; raises MopError for a bad value."""
    values = {}
    for name, (parser, default) in KNOWN.items():
        text = texts.get(name) or default
        try:
            values[name] = parser.read(text) if text else None
        except ValueError:
            raise MopError(
                f'invalid value for setting "pg_mop.{name}": "{text}"', hint=f"It takes {parser.description}."
            ) from None
    return values
