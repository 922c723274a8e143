"""What trainers have compiled by XLA, and what TensorFlow traced for it, kept for later trainers of the same role.

A directory for each role, version of the packages and kind of processor, in the fork server's folder of the server's data
directory: backups leave it out, and a copied cluster runs no code that was made for another machine. Trainers alone
read and write there, each in its role's own: what a role compiles can do harm to nobody else, nor tell anybody of it.

Standard library only: backends import it.
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

from mop_udf import server_folder

VARIABLE = "PG_MOP_COMPILE_CACHE"  # of a trainer's environment: "megabytes:directory"
UNUSED_SECONDS = 30 * 86400  # after which a directory is removed, by who makes one
FREE_BYTES = 1 << 30  # that a disk must have
COMPILED = 200  # models of an architecture that are known to have been compiled
TRACE, NEW = ".trace", ".new"  # what files' names end in that `write` made, or is about to
WAIT_SECONDS = 120  # for another trainer that compiles the same


def environment(home, keras_backend, role, threads, megabytes):
    """What a trainer's environment needs for that, a dict; empty where there is no place for it.

    `role`: a number; `threads`: the trainer's, for which XLA compiles; `megabytes`: the most that its directory may
    hold.
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


def current():
    """The :class:`CompileCache` of this trainer, or None."""
    if VARIABLE not in os.environ:
        return None
    megabytes, path = os.environ[VARIABLE].split(":", 1)
    return CompileCache(path, int(megabytes) << 20)


class CompileCache:
    """A directory of at most `most_bytes`, about. Where it cannot be read or written, it does without."""

    def __init__(self, path, most_bytes):
        self.path, self.most_bytes = path, most_bytes

    def tidy(self):
        """Something has been written: remove the oldest where it is too much."""
        files = []
        for entry in self._entries():
            try:
                status = entry.stat()
                if entry.name.endswith(".lock"):  # of no size, and somebody may hold it
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

    def clear(self):
        """Remove what has been compiled, or traced. True where there was anything compiled."""
        removed = 0
        for entry in self._entries():
            if not entry.name.endswith(".lock"):  # (somebody may hold it)
                removed += _remove(entry.path) and not entry.name.endswith((".json", TRACE, NEW))
        return removed > 0

    def _entries(self):
        try:
            return list(os.scandir(self.path))
        except OSError:
            return []

    def compiled(self, architecture):
        """{what was compiled: (seconds that it took last, how often it was)}, by digests of the texts that were noted,
        for an architecture (text): once more it is read from here, unless it has been removed since."""
        return self._read(self._name(architecture))

    def note(self, architecture, text, seconds):
        """Something has been compiled in so many seconds; `text`: equal for what is compiled alike."""
        compiled = self._read(self._name(architecture))
        _, often = compiled.pop(digest(text), (None, 0))
        compiled[digest(text)] = seconds, often + 1
        self._put(self._name(architecture), json.dumps({"compiled": dict([*compiled.items()][-COMPILED:])}).encode())

    def read(self, text):
        """What is kept under a text, bytes; None where nothing is, or it is damaged."""
        try:
            with open(self._trace(text), "rb") as file:
                told, data = file.read(32), file.read()
                os.utime(file.fileno())  # what is used stays longest
        except OSError:
            return None
        return data if hashlib.sha256(data).digest() == told else None

    def write(self, text, data):
        """Keep bytes under a text."""
        self._put(self._trace(text), hashlib.sha256(data).digest() + data)
        self.tidy()

    @contextlib.contextmanager
    def exclusive(self, text, waits):
        """Within it no other trainer compiles what has this text: it is True. Where one does, whoever `waits` waits
        until it can be read from here, WAIT_SECONDS at most; for others it is False. (Where nothing can be written
        here, each compiles for itself.)"""
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

    def _put(self, path, data):
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
    def _read(path):
        try:
            with open(path) as file:
                return {
                    str(text): (float(last), int(often)) for text, (last, often) in json.load(file)["compiled"].items()
                }
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            return {}

    def _trace(self, text):
        return os.path.join(self.path, digest(text) + TRACE)

    def _name(self, architecture):
        return os.path.join(self.path, digest(architecture) + ".json")


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _locked(descriptor):
    """True once this process has the lock of a file, which goes with the descriptor, whatever the process ends by."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


def _remove(path):
    try:
        os.unlink(path)
        return True
    except OSError:
        return False


def processor():
    """Names the kind of processor, as a digest: what is compiled for one may not run on another."""
    told = ("model name", "flags", "cpu family", "model", "stepping", "features", "cpu implementer", "cpu part")
    with open("/proc/cpuinfo") as file:
        first = file.read().split("\n\n")[0]
    lines = [line for line in first.splitlines() if line.partition(":")[0].strip().lower() in told]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
