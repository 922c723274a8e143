"""Solves the programs of the scheduler milp in a process, while the run's first units are trained."""

import os
import subprocess
import tempfile
from typing import IO

from mop_udf.pool.child_process import environment
from mop_udf.pool.process import command
from pg_mop.schedule.compared.milp import Solution, heuristic
from pg_mop.schedule.compared.milp_process import packed, unpacked
from pg_mop.schedule.compared.open_shop import Seconds, lower_bound

MOST_ERROR = 500  # characters of what a failed process wrote


class SolverProcess:
    """The `solver` of a run (schedule/compared/milp.py). It has one process at most, which dies with it.

    A process that fails, for example because it got no memory, leaves the heuristic's schedule.
    """

    def __init__(self, home: str) -> None:
        """`home`: the virtual environment with the packages."""
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None
        self.life: int | None = None
        self.files: list[IO[bytes]] = []
        self.shop: Seconds = ()

    def begin(self, shop: Seconds, seconds: float) -> None:
        self.close()
        self.shop, self.files = shop, [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115
        self.files[0].write(packed(shop).encode())
        self.files[0].seek(0)
        other, self.life = os.pipe()
        try:
            self.process = subprocess.Popen(
                command(self.home, "pg_mop.schedule.compared.milp_process", other, seconds),
                stdin=self.files[0],
                stdout=self.files[1],
                stderr=self.files[2],
                pass_fds=[other],
                env=environment("tensorflow"),
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            self.process = None
        finally:
            os.close(other)

    def answer(self) -> Solution | None:
        if self.process is not None and self.process.poll() is None:
            return None
        code, texts = None if self.process is None else self.process.returncode, []
        for file in self.files[1:]:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        self.close()
        if code == 0:
            return unpacked(texts[0])
        why = texts[1].strip()[-MOST_ERROR:] or ("it could not be started" if code is None else f"exit status {code}")
        return Solution(heuristic(self.shop), lower_bound(self.shop), f"its process failed: {why}")

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        if self.life is not None:
            os.close(self.life)
            self.life = None
        for file in self.files:
            file.close()
        self.files = []
