"""The compile cache: code compiled by XLA and functions traced by TensorFlow, kept for later trainers of the same role.

Each role, version of the packages and kind of processor has a directory in the server's folder (server_folder.py).
Backups leave the folder out, and a copied cluster does not run code compiled for another machine. Only trainers read
and write a directory, each the directory of its role: a role's compiled code can neither harm nor inform another role.

Standard library only: backends import this module.
"""

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator

from mop_udf.pool import server_folder

VARIABLE = "PG_MOP_COMPILE_CACHE"  # of the trainer's environment: "megabytes:directory"
UNUSED_SECONDS = 30 * 86400  # a directory that is unused for so long is removed when another is made
FREE_BYTES = 1 << 30  # free space that the disk must have
COMPILED = 200  # compiled models recorded for an architecture
TRACE, NEW = ".trace", ".new"  # suffixes of trace files, complete and being written
WAIT_SECONDS = 120  # for another trainer that compiles the same code


def environment(home: str, keras_backend: str, role: int, threads: int, megabytes: int) -> dict[str, str]:
    """The environment variables (a dict) that give a trainer its compile cache; empty where a cache is impossible.

    `role`: the role's OID; `threads`: the trainer's threads, which XLA compiles for; `megabytes`: the most that the
    directory may hold.
    """
    try:
        folder, opened, _ = server_folder.own_folder()
        os.close(opened)
        kind = f"{server_folder.version(home, keras_backend)}-{processor()}"
        path = os.path.join(folder, f"xla-{kind}-{int(threads)}-{int(role)}")
        disk = os.statvfs(folder)
        # (TensorFlow's flags end at a blank)
        if not megabytes or disk.f_bavail * disk.f_frsize < FREE_BYTES or len(path.split()) != 1:
            return {}
        if not os.path.isdir(path):
            for other in glob.glob(f"{glob.escape(folder)}/xla-*"):
                if time.time() - os.stat(other).st_mtime > UNUSED_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)
            os.makedirs(path, 0o700, exist_ok=True)
        os.utime(path)
        if not os.access(path, os.W_OK | os.X_OK):
            return {}
    except OSError:
        return {}
    return {"TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={path}", VARIABLE: f"{int(megabytes)}:{path}"}


def current() -> "CompileCache | None":
    """The :class:`CompileCache` of this trainer, or None."""
    if VARIABLE not in os.environ:
        return None
    megabytes, path = os.environ[VARIABLE].split(":", 1)
    return CompileCache(path, int(megabytes) << 20)


class CompileCache:
    """A cache directory of about `most_bytes`. Errors in reading and writing are ignored: the trainer compiles again."""

    def __init__(self, path: str, most_bytes: int) -> None:
        self.path, self.most_bytes = path, most_bytes

    def tidy(self) -> None:
        """Remove the oldest files if the directory is too large. To be called after a write."""
        files = []
        for entry in self._entries():
            try:
                status = entry.stat()
                if entry.name.endswith(".lock"):  # empty, and another trainer may hold it
                    continue
                files.append((status.st_mtime, status.st_size, entry.path))
            except OSError:
                pass
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files) if total > self.most_bytes else ():
            if total <= self.most_bytes * 3 // 4:
                break
            if _remove(path):
                total -= size

    def clear(self) -> bool:
        """Remove all compiled code and traces. True where there was compiled code."""
        removed = 0
        for entry in self._entries():
            if not entry.name.endswith(".lock"):  # (another trainer may hold it)
                removed += _remove(entry.path) and not entry.name.endswith((".json", TRACE, NEW))
        return removed > 0

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            return list(os.scandir(self.path))
        except OSError:
            return []

    def compiled(self, architecture: str) -> dict[str, tuple[float, int]]:
        """{digest of a name: (seconds of the last compilation, number of compilations)} of an architecture (text).

        The cache holds the compiled code of these names, unless it has been removed since.
        """
        return self._read(self._name(architecture))

    def note(self, architecture: str, text: str, seconds: float) -> None:
        """Record a compilation for an architecture; `text`: the name of the code, equal for equal code."""
        compiled = self._read(self._name(architecture))
        _, often = compiled.pop(digest(text), (None, 0))
        compiled[digest(text)] = seconds, often + 1
        self._put(self._name(architecture), json.dumps({"compiled": dict([*compiled.items()][-COMPILED:])}).encode())

    def read(self, text: str) -> bytes | None:
        """The bytes kept under a text; None where nothing is kept or the file is damaged."""
        try:
            with open(self._trace(text), "rb") as file:
                digest_read, data = file.read(32), file.read()
                os.utime(file.fileno())  # the most recently used files stay longest
        except OSError:
            return None
        return data if hashlib.sha256(data).digest() == digest_read else None

    def write(self, text: str, data: bytes) -> None:
        """Keep bytes under a text."""
        self._put(self._trace(text), hashlib.sha256(data).digest() + data)
        self.tidy()

    @contextlib.contextmanager
    def exclusive(self, text: str, waits: bool) -> Iterator[bool]:
        """A context, true inside, that keeps other trainers from compiling the code with this name.

        If another trainer compiles it, a caller that `waits` gets the context when the code can be read from the cache,
        or after WAIT_SECONDS; other callers get false at once. Where the directory is not writable, each trainer
        compiles for itself.
        """
        try:
            descriptor = os.open(os.path.join(self.path, f"{digest(text)[:3]}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            yield True
            return
        try:
            until = time.monotonic() + (WAIT_SECONDS if waits else 0)
            while not (locked := _locked(descriptor)) and time.monotonic() < until:
                time.sleep(0.02)
            yield locked or waits
        finally:
            os.close(descriptor)

    def _put(self, path: str, data: bytes) -> None:
        made = None
        try:
            with tempfile.NamedTemporaryFile(dir=self.path, suffix=NEW, delete=False) as file:
                made = file.name
                file.write(data)
            os.replace(made, path)
        except OSError:
            if made:
                _remove(made)

    @staticmethod
    def _read(path: str) -> dict[str, tuple[float, int]]:
        try:
            with open(path) as file:
                return {
                    str(text): (float(last), int(often)) for text, (last, often) in json.load(file)["compiled"].items()
                }
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            return {}

    def _trace(self, text: str) -> str:
        return os.path.join(self.path, digest(text) + TRACE)

    def _name(self, architecture: str) -> str:
        return os.path.join(self.path, digest(architecture) + ".json")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _locked(descriptor: int) -> bool:
    """True once this process has locked a file. The kernel releases the lock with the descriptor, however the process
    ends.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
        return True
    except OSError:
        return False


def processor() -> str:
    """A digest that names the kind of processor: code compiled for one kind may not run on another."""
    relevant = ("model name", "flags", "cpu family", "model", "stepping", "features", "cpu implementer", "cpu part")
    with open("/proc/cpuinfo") as file:
        first = file.read().split("\n\n")[0]
    lines = [line for line in first.splitlines() if line.partition(":")[0].strip().lower() in relevant]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
