"""What trainers have compiled by XLA, and found out of kernels, kept for later trainers of the same role.

A directory for each role, version of the packages and kind of processor, in the nursery's folder of the server's data
directory: backups leave it out, and a copied cluster runs no code that was made for another machine. Trainers alone
read and write there, each in its role's own: what a role compiles can do harm to nobody else, nor tell anybody of it.

Standard library only: backends import it.
"""

import glob
import hashlib
import json
import os
import shutil
import statistics
import tempfile
import time

from mop_udf import nursery

VARIABLE = "PG_MOP_COMPILE_CACHE"  # of a trainer's environment: "megabytes:directory"
UNUSED_SECONDS = 30 * 86400        # after which a directory is removed, by who makes one
FREE_BYTES = 1 << 30               # that a disk must have
KEPT = 9                           # measurements of a kernel
COMPILED = 200                     # models of an architecture that are known to have been compiled


def environment(home, keras_backend, role, threads, megabytes):
    """What a trainer's environment needs for that, a dict; empty where there is no place for it.

    `role`: a number; `threads`: the trainer's, for which XLA compiles; `megabytes`: the most that its directory may
    hold.
    """
    try:
        folder, opened = nursery.own_folder()
        os.close(opened)
        kind = f"{nursery.version(home, keras_backend)}-{_processor()}"
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


def own():
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
        """Remove what has been compiled; what was measured stays. True where anything was removed."""
        removed = 0
        for entry in self._entries():
            if entry.name.endswith(".json"):
                self._write(entry.path, self._read(entry.path)[0], {})
            else:
                removed += _remove(entry.path)
        return removed > 0

    def _entries(self):
        try:
            return list(os.scandir(self.path))
        except OSError:
            return []

    def known(self, architecture):
        """{kernel: (speed-up, seconds to compile)}, medians of what trainers have measured for an architecture (text):
        either is None where nobody has."""
        return {kernel: tuple(statistics.median(values) if (values := [v for v in own if v is not None]) else None
                              for own in zip(*measured))
                for kernel, measured in self._read(self._name(architecture))[0].items()}

    def compiled(self, architecture):
        """{what was compiled: (seconds that it took last, how often it was)}, by digests of the texts that were noted:
        once more it is read from here, unless it has been removed since."""
        return self._read(self._name(architecture))[1]

    def note(self, architecture, kernel, speedup, compile_seconds, compiled=None):
        """Keep a measurement; `compiled`: a text, equal for what is compiled alike, where it just was."""
        measured, seconds = self._read(self._name(architecture))
        measured[kernel] = [*measured.get(kernel, []), [speedup, compile_seconds]][-KEPT:]
        if compiled is not None:
            _, often = seconds.pop(digest(compiled), (None, 0))
            seconds[digest(compiled)] = compile_seconds, often + 1
        self._write(self._name(architecture), measured, dict([*seconds.items()][-COMPILED:]))

    def _write(self, path, measured, seconds):
        try:
            with tempfile.NamedTemporaryFile("w", dir=self.path, suffix=".new", delete=False) as file:
                json.dump({"measured": measured, "compiled": seconds}, file)
            os.replace(file.name, path)
        except OSError:
            pass

    @staticmethod
    def _read(path):
        """({kernel: [[speed-up or None, seconds], ...]}, what `compiled` gives)."""
        try:
            with open(path) as file:
                found = json.load(file)
            return ({str(kernel): [[None if s is None else float(s), float(c)] for s, c in measured]
                     for kernel, measured in found["measured"].items() if measured},
                    {str(text): (float(last), int(often)) for text, (last, often) in found["compiled"].items()})
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            return {}, {}

    def _name(self, architecture):
        return os.path.join(self.path, digest(architecture) + ".json")


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _remove(path):
    try:
        os.unlink(path)
        return True
    except OSError:
        return False


def _processor():
    """Names the kind of processor: what is compiled for one may not run on another."""
    told = ("model name", "flags", "cpu family", "model", "stepping", "features", "cpu implementer", "cpu part")
    with open("/proc/cpuinfo") as file:
        first = file.read().split("\n\n")[0]
    lines = [line for line in first.splitlines() if line.partition(":")[0].strip().lower() in told]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
