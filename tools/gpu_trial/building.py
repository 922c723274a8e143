"""The step build: PostgreSQL with PL/Python for the running Python, the packages, and the extension of this checkout.

`python3 building.py`, as the trial's user, in the copy of the checkout, with the trial's directory in TRIAL.
"""

import os
import shutil
import site
import subprocess
import sys
import tarfile
import time
import venv
import zipfile

import machine
import running

WITHOUT = ("readline", "zlib", "icu")  # they need headers of other packages
EMBED = """#include <Python.h>
int main(void) { Py_Initialize(); return PyRun_SimpleString("import json, zlib, ctypes, math"); }
"""
VERIFY = """
import sys
sys.path[:0] = ["tests"]
from support.client import Client
from support.cluster import Cluster
with Cluster() as server:
    db = Client(server, "postgres")
    db.run("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE")
    db.run("CREATE FUNCTION python() RETURNS text LANGUAGE plpython3u AS $$ import sys; return sys.version.split()[0] $$")
    own = "SELECT extversion FROM pg_extension WHERE extname = 'pg_mop'"
    print(db.value("SHOW server_version"), db.value("SELECT python()"), db.value(own), sep="\\n")
    db.close()
"""


def build(trial):
    """Do the step from the outside: the lines of its result. Raises StepFailed."""
    built = trial.tree / ".local" / "built"
    built.unlink(missing_ok=True)
    trial.do("build", [trial.python, "-B", "tools/gpu_trial/building.py"], TRIAL=str(trial.place))
    machine.versions(trial, str(trial.home / "bin" / "python"))
    return built.read_text().splitlines()


def main():
    trial = running.Trial()
    took = trial.pg / "built in"
    if not took.exists():
        began = time.monotonic()
        postgresql(trial)
        took.write_text(f"PostgreSQL built in {time.monotonic() - began:.0f} s")
    said = [took.read_text()]
    said += pl_python(trial)
    said += packages(trial)
    extension(trial)
    python = trial.home / "bin" / "python"
    done = subprocess.run([python, "-B", "-W", "ignore", "-c", VERIFY], stdout=subprocess.PIPE, text=True, check=True)
    server, embedded, own = done.stdout.strip().splitlines()[-3:]
    (trial.tree / ".local" / "built").write_text(
        "\n".join([f"PostgreSQL {server}, PL/Python with Python {embedded}, pg_mop {own}", *said])
    )


def make(trial, *words, folder):
    """Run make with all cores: the system's, or the folder's."""
    program = shutil.which("make") or trial.carried / "unpacked" / "usr" / "bin" / "make"
    subprocess.run([program, f"-j{len(os.sched_getaffinity(0))}", *words], cwd=folder, check=True)


def source(trial):
    """The directory of PostgreSQL's sources, unpacked."""
    (packed,) = trial.carried.glob("postgresql-*.orig.tar.*")
    into = trial.place / "source"
    if not (into / "unpacked").exists():
        shutil.rmtree(into, ignore_errors=True)
        with tarfile.open(packed) as file:  # (bzip2 may be missing: Python has its own)
            file.extractall(into, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        (into / "unpacked").touch()
    (found,) = into.glob("postgresql-*")
    return found


def postgresql(trial):
    """Build and install the server, without PL/Python."""
    folder = source(trial)
    options = [f"--prefix={trial.pg}", *(f"--without-{name}" for name in WITHOUT)]
    compiler = machine.compiler_here()
    subprocess.run(["./configure", "--quiet", *options, f"CC={compiler}", "CFLAGS=-O2"], cwd=folder, check=True)
    make(trial, "--silent", folder=folder)
    make(trial, "--silent", "install", folder=folder)


def pl_python(trial):
    """Build and install PL/Python for the running Python's shared library: lines that say what was unusual.

    The configure script of PostgreSQL accepts a library only with the file names and headers of a development package.
    """
    library, include = machine.shared_library(trial), machine.headers(trial)
    if library is None or include is None:
        raise SystemExit("error: Python's shared library or its headers are missing (the step look names them)")
    folder = source(trial) / "src" / "pl" / "plpython"
    for built in (*folder.glob("*.o"), *folder.glob("*.so")):  # of an earlier Python
        built.unlink()
    flags = [f"-I{include}", f"-L{library.parent}", f"-l:{library.name}", "-lpthread", "-ldl", "-lutil", "-lm"]
    make(
        trial,
        "--silent",
        f"python_includespec={flags[0]}",
        f"python_libspec={' '.join(flags[1:3])}",
        f"python_additional_libs={' '.join(flags[3:])}",
        f"python_libdir={library.parent}",
        "python_majorversion=3",
        "python_version=%d.%d" % sys.version_info[:2],
        "with_python=yes",
        "install",
        folder=folder,
    )
    return embedding(trial, flags, library)


def embedding(trial, flags, library):
    """Whether a program that embeds this library finds Python's modules. If not, the server gets PYTHONHOME: lines for that.

    (A Python that was moved after its build looks for its modules where it was built.)
    """
    program, postgres, real = (
        trial.place / "embed",
        *(trial.pg / "bin" / name for name in ("postgres", "postgres.program")),
    )
    if real.exists():  # an earlier build, perhaps for another Python
        real.replace(postgres)
    (trial.place / "embed.c").write_text(EMBED)
    words = [machine.compiler_here(), program.with_suffix(".c"), "-o", program, *flags, f"-Wl,-rpath,{library.parent}"]
    subprocess.run(words, check=True)
    clean = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    if subprocess.run([program], env=clean).returncode == 0:
        return []
    home = f"{sys.base_prefix}:{sys.base_exec_prefix}"
    subprocess.run([program], env={**clean, "PYTHONHOME": home}, check=True)
    postgres.rename(real)
    postgres.write_text(f'#!/bin/sh\nPYTHONHOME={home} exec "$0.program" "$@"\n')
    postgres.chmod(0o755)
    return [f"the server runs with PYTHONHOME={home}"]


def packages(trial):
    """The virtual environment of the packages, with the frameworks where they are: a line with the wheels that were missing.

    pip and its wheels may be missing, so this unpacks wheels itself; none of them needs more.
    """
    into = trial.home / "lib" / ("python%d.%d" % sys.version_info[:2]) / "site-packages"
    shutil.rmtree(trial.home, ignore_errors=True)
    venv.create(trial.home, symlinks=True, with_pip=False)
    own = [path for path in sys.path if path.endswith(("site-packages", "dist-packages")) and os.path.isdir(path)]
    own = own or site.getsitepackages()
    (into / "frameworks.pth").write_text("\n".join(own) + "\n")
    unpacked = []
    for wheel in sorted(trial.carried.glob("wheels/*.whl")):
        name = wheel.name.split("-")[0]
        if not machine.installed(name):
            with zipfile.ZipFile(wheel) as file:
                file.extractall(into)
            unpacked.append(name)
    for package in ("mop_udf", "plpy_modules/pg_mop"):
        shutil.copytree(trial.tree / package, into / package.split("/")[-1])
    subprocess.run([trial.home / "bin" / "python", "-m", "compileall", "-q", into], check=False)
    return [f"packages of the folder: {', '.join(unpacked) or 'none was missing'}"]


def extension(trial):
    """The extension's files, and where the tests look for the server's programs."""
    into = trial.pg / "share" / "extension"
    into = into if into.is_dir() else trial.pg / "share" / "postgresql" / "extension"
    shutil.copy(trial.tree / "pg_mop.control", into)
    subprocess.run([sys.executable, "-B", "tools/build_sql.py", trial.home, into], cwd=trial.tree, check=True)
    (trial.tree / ".local" / "bindir").write_text(str(trial.pg / "bin"))


if __name__ == "__main__":
    main()
