"""Starting, holding and ending the trainer process of a backend. Standard library only."""

import fcntl
import os
import subprocess
import tempfile

from mop_udf.channel import Channel, ChannelClosed

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
F_SETPIPE_SZ = 1031   # Linux; in Python's fcntl from 3.10 on
PIPE_BYTES = 1 << 20  # what every user may ask for


class TrainerLost(Exception):
    """The trainer ended before it answered; the text says how."""


class TrainerError(Exception):
    """The trainer refused the work and lives on.

    `configuration` tells whether the configuration is to blame; `datasets`: what the trainer's cache holds now, or None
    where that has not changed.
    """

    def __init__(self, message, configuration, datasets=None):
        super().__init__(message)
        self.configuration, self.datasets = configuration, datasets


class MemoryExceeded(TrainerError):
    """The trainer held more memory than it may, and was ended; the text says how much. Not to be tried again."""

    def __init__(self, message):
        super().__init__(message, configuration=True, datasets=())


class Trainer:
    """A trainer process and the channel to it.

    It is an exec of the packages' own interpreter with a clean environment, in a session of its own, and dies with
    this process. `tick` is called while waiting for it; whatever `tick` raises ends the trainer, since an answer
    that nobody waits for would be taken for the next one.
    """

    def __init__(self, home, options, tick):
        """`home`: the virtual environment; `options`: threads, gpu (None = CPU), keras_backend, cache_mb, idle_ms.

        They may also have, None being no limit: memory_mb, of the memory that it holds, and model_mb, of the weights
        and optimizer variables of a model.
        """
        self.options = options
        self.datasets = set()  # keys of the segments that the trainer keeps in its cache
        self._log = tempfile.TemporaryFile()
        environment = {
            "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent", "KERAS_HOME": "/nonexistent",
            "KERAS_BACKEND": options["keras_backend"], "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": str(options["threads"]),
            "CUDA_VISIBLE_DEVICES": "-1" if options.get("gpu") is None else str(options["gpu"]),
        }
        self.process = subprocess.Popen(
            [os.path.join(home, "bin", "python"), "-I", "-B", "-m", "mop_udf.trainer", str(os.getpid()),
             str(options["threads"]), str(options["cache_mb"]), str(options["idle_ms"]),
             str(options.get("memory_mb") or 0), str(options.get("model_mb") or 0)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment, cwd="/",
            start_new_session=True, bufsize=0)
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                fcntl.fcntl(pipe.fileno(), F_SETPIPE_SZ, PIPE_BYTES)
            except OSError:  # this user has used up his share of pipes' memory: a small one is only slower
                pass
        self._tick, self._memory_mb = tick, options.get("memory_mb")
        self.channel = Channel(self.process.stdout.fileno(), self.process.stdin.fileno(), self._watch)

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process.poll() is None

    def _watch(self):
        """What is done at every tick."""
        if self._memory_mb:
            with open(f"/proc/{self.pid}/statm") as file:
                held = int(file.read().split()[1]) * PAGE_BYTES >> 20
            if held > self._memory_mb:
                raise MemoryExceeded(f"the trainer used {held} MB, more than pg_mop.trainer_memory_mb allows "
                                     f"({self._memory_mb} MB)")
        self._tick()

    def send(self, header, *payloads):
        """Send a frame. Raises TrainerLost and MemoryExceeded; ends the trainer on any interruption."""
        self._guard(self.channel.send, header, *payloads)

    def receive(self, joined=False):
        """(header, payloads) of the answer; `joined`: the payloads as one. Raises TrainerLost and MemoryExceeded,
        or TrainerError where the answer is an error."""
        header, payloads = self._guard(self.channel.receive, joined)
        if "error" in header:
            raise TrainerError(header["error"], header["configuration"], header.get("datasets"))
        return header, payloads

    def kill(self):
        """End the process at once."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()

    def _guard(self, operation, *args):
        try:
            return operation(*args)
        except (ChannelClosed, ValueError, OSError):
            self.kill()
            raise TrainerLost(self._how_it_ended()) from None
        except BaseException:
            self.kill()
            raise

    def _how_it_ended(self):
        code = self.process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 2000))
        tail = self._log.read().decode("utf-8", "replace").strip()
        return f"the trainer process {self.pid} {how}" + (f"; its last words: {tail}" if tail else "")
