"""The step look: what a trial needs and the machine has. It names everything that is missing at once."""

import glob
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version

from folder import PACKAGES
from running import StepFailed, today
from steps import FRAMEWORKS

CUDA_FOLDERS = (
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
)
LOADER = pathlib.Path("/etc/ld.so.conf.d/pg_mop-gpu-trial.conf")
CUDA = "import ctypes; ctypes.CDLL('libcuda.so.1')"
DEVICE = {
    "jax": "import jax; one = jax.devices()[0]; print('DEVICE', one.platform, one.device_kind, sep='\\t')",
    "torch": "import torch; found = torch.cuda.is_available(); "
    "print('DEVICE', *(('gpu', torch.cuda.get_device_name()) if found else ('cpu', 'cpu')), sep='\\t')",
}
VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def look(trial):
    """The lines of the step's result. Raises StepFailed with what is missing."""
    said, missing = [], []
    said.append(f"Python {platform.python_version()} of {sys.base_prefix}, as {trial.user}")
    for need in (compiler, python_library, carried, frameworks, gpu):
        need(trial, said, missing)
    trial.write(
        "facts", {**trial.read("facts", {}), "machine": machine(), "made by": f"`tools/gpu_trial.sh`, {today()}"}
    )
    if missing:
        raise StepFailed([*(f"MISSING: {line}" for line in missing), *said])
    return said


def machine():
    """The processors and the memory, in words."""
    model = re.search(r"(?m)^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    return f"{len(os.sched_getaffinity(0))} cores of {model[1] if model else platform.machine()}, {memory:.0f} GiB"


# --- to build with ------------------------------------------------------------------------------------
def compiler(trial, said, missing):
    """A C compiler, and make: the system's, or the folder's."""
    if not compiler_here():
        missing.append("a C compiler (gcc)")
    if not shutil.which("make"):
        if (trial.carried / "unpacked" / "usr" / "bin" / "make").exists():
            said.append("make is the folder's")
        else:
            missing.append("make")
    if not os.path.exists("/usr/include/stdio.h"):
        missing.append("the headers of the C library (libc6-dev)")


def compiler_here():
    """The C compiler's name, or None."""
    return next((name for name in ("gcc", "cc", "clang") if shutil.which(name)), None)


def shared_library(trial):
    """The path of the running Python's shared library, or of the folder's for Ubuntu's Python; None if there is neither."""
    names = [sysconfig.get_config_var(name) for name in ("INSTSONAME", "LDLIBRARY")]
    minor = "%d.%d" % sys.version_info[:2]
    names += [f"libpython{minor}.so.1.0", f"libpython{minor}.so"]
    folders = [sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib", sysconfig.get_config_var("LIBPL")]
    folders += ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"]
    if sys.base_prefix == "/usr":
        folders.append(f"{trial.carried}/unpacked/usr/lib/x86_64-linux-gnu")
    for folder in filter(None, folders):
        for name in filter(None, names):
            if ".so" in name and os.path.isfile(f"{folder}/{name}"):
                return pathlib.Path(folder, name)
    return None


def headers(trial):
    """The directory of Python.h: the running Python's, or the folder's; None if neither has it."""
    own = sysconfig.get_path("include", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix})
    carried = trial.carried / "include"
    found = [
        path
        for path in (pathlib.Path(own), pathlib.Path(sysconfig.get_path("include")), carried)
        if (path / "Python.h").exists()
    ]
    if (
        found
        and found[0] == carried
        and f"PY_MINOR_VERSION        {sys.version_info[1]}" not in (carried / "patchlevel.h").read_text()
    ):
        return None  # of another version
    return found[0] if found else None


def python_library(trial, said, missing):
    """What PL/Python is linked to. A static library does not suffice: PostgreSQL loads PL/Python while it runs."""
    library, include = shared_library(trial), headers(trial)
    minor = "%d.%d" % sys.version_info[:2]
    if library is None:
        missing.append(
            f"libpython{minor}.so, Python's shared library, in {sysconfig.get_config_var('LIBDIR')} "
            f"(apt-get install libpython{minor}, or a Python built with --enable-shared)"
        )
    else:
        said.append(f"PL/Python for {library}")
    if include is None:
        missing.append(f"Python.h of {minor} (apt-get install libpython{minor}-dev, or headers in the folder)")
    else:
        said.append(f"headers in {include}" + (", of the folder" if include == trial.carried / "include" else ""))


def carried(trial, said, missing):
    """The folder's files."""
    if not list(trial.carried.glob("postgresql-*.orig.tar.*")):
        missing.append(f"the sources of PostgreSQL in {trial.carried}")
    wheels = {path.name.split("-")[0] for path in trial.carried.glob("wheels/*.whl")}
    lacking = [name for name in PACKAGES if name.replace("-", "_") not in wheels and not installed(name)]
    if lacking:
        missing.append(
            f"the packages {', '.join(lacking)}: neither {sys.executable} nor {trial.carried}/wheels has them"
        )
    tag = "cp%d%d" % sys.version_info[:2]
    for path in trial.carried.glob("wheels/*.whl"):
        if not re.search(rf"-(py2\.)?py3-|-{tag}-|-abi3-", path.name):
            missing.append(
                f"{path.name.split('-')[0]} for Python {platform.python_version()}: the folder has {path.name} (VERSION)"
            )
            break


def installed(name):
    """True if the running Python has a package."""
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


# --- to train with ------------------------------------------------------------------------------------
def frameworks(trial, said, missing):
    """JAX and PyTorch, with their devices, and NumPy, as the trial's user imports them in a trainer's environment."""
    found = {}
    status, text = trial.ask(trial.python, "-I", "-c", "pass", clean=True)
    if status:
        closed = " ".join(map(str, closed_folders(trial.python)))
        missing.append(
            f"the right of the user {trial.user} to run {trial.python}"
            + (f" (chmod o+x {closed}, as root)" if closed else f": {text}")
        )
    status, text = trial.ask(trial.python, "-I", "-c", "import numpy", clean=True)
    if status:
        missing.append(
            f"NumPy for {trial.python}, as the user {trial.user}: {text.splitlines()[-1] if text else status}"
        )
    loader(trial, said)
    for name, framework in FRAMEWORKS.items():
        status, text = trial.ask(trial.python, "-I", "-c", DEVICE[name], clean=True)
        told = re.search(r"(?m)^DEVICE\t(.*)\t(.*)$", text)
        if status or not told:
            said.append(f"{framework} cannot be imported: {text.splitlines()[-1] if text else status}")
        else:
            found[name] = told[2] if told[1] in ("gpu", "cuda") else "processors"
    if not found:
        missing.append(f"JAX or PyTorch for {trial.python}, readable by the user {trial.user}")
    trial.write("frameworks", found)
    said += [f"{FRAMEWORKS[name]} on {device}" for name, device in found.items()]


def closed_folders(program):
    """The directories on the way to a program, through symbolic links, that other users may not pass."""
    found, path = [], pathlib.Path(program).absolute()
    for _ in range(40):
        found += [folder for folder in path.parents if not folder.stat().st_mode & 0o001 and folder not in found]
        if not path.is_symlink():
            break
        path = pathlib.Path(os.path.normpath(path.parent / os.readlink(path)))
    return found


def loader(trial, said):
    """Let the dynamic loader find the driver's library, since trainers have no LD_LIBRARY_PATH."""
    if not glob.glob("/dev/nvidia[0-9]*") or not trial.ask(trial.python, "-I", "-c", CUDA, clean=True)[0]:
        return
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *CUDA_FOLDERS]
    place = next((folder for folder in folders if folder and os.path.exists(f"{folder}/libcuda.so.1")), None)
    if place and os.getuid() == 0:
        LOADER.write_text(place + "\n")
        subprocess.run(["ldconfig"], check=False)
        said.append(f"{LOADER} names {place}, where libcuda.so.1 is: trainers have no LD_LIBRARY_PATH")
    else:
        said.append(
            f"trainers find no libcuda.so.1{f' ({place} has it: name it in /etc/ld.so.conf.d, as root)' if place else ''}"
        )


def gpu(trial, said, missing):
    """The card, as the driver names it."""
    devices = sorted(glob.glob("/dev/nvidia[0-9]*"))
    try:
        words = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        cards = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.split("\n")
    except (OSError, subprocess.SubprocessError):
        cards = []
    cards = [card.strip() for card in cards if card.strip()]
    usable = [name for name, device in trial.read("frameworks", {}).items() if device != "processors"]
    for device in (*devices, *(["/dev/nvidiactl"] if devices else [])):
        if trial.ask("test", "-w", device)[0]:
            missing.append(f"the right of the user {trial.user} to write to {device} (chmod o+rw {device}, as root)")
    if devices and not cards:
        missing.append("nvidia-smi, which reports the GPU and its memory")
    if cards and not usable:
        missing.append(f"a framework that can use the GPU {cards[0]}: none of {', '.join(FRAMEWORKS.values())} sees it")
    trial.write("gpu", bool(cards and usable))
    name = "; ".join(cards) if cards else "no GPU: all steps on processors"
    said.append(name)
    trial.write("facts", {**trial.read("facts", {}), "GPU": name})


def versions(trial, python):
    """Write the versions of packages, and those outside pyproject.toml's ranges, into the facts."""
    names = ["keras", "jax", "torch", "numpy", "h5py", "dill", "psycopg2-binary", "setproctitle", "tensorboard"]
    status, text = trial.ask(python, "-I", "-c", VERSIONS, *names)
    found = json.loads(text.splitlines()[-1]) if not status else {}
    shown = {"keras": "Keras", "jax": "JAX", "torch": "PyTorch", "numpy": "NumPy"}
    words = [f"Python {platform.python_version()}"]
    if (config := trial.pg / "bin" / "pg_config").exists():
        words.append(trial.ask(str(config), "--version")[1])
    words += [f"{own} {found[name]}" for name, own in shown.items() if name in found]
    trial.write(
        "facts",
        {
            **trial.read("facts", {}),
            "versions": ", ".join(words),
            "outside the supported versions": "; ".join(
                outside((trial.tree / "pyproject.toml").read_text(), found, names)
            ),
        },
    )


def outside(pyproject, found, names):
    """Lines for packages that are missing or outside the ranges of the text of pyproject.toml. `found`: {name: version}."""
    lines = []
    for name in names:
        wanted = re.search(rf'"{re.escape(name)}((?:[<>]=?[0-9.]+,?)+)"', pyproject)
        if wanted and name not in found:
            lines.append(f"{name} is missing")
        elif wanted and not all(_holds(found[name], bound) for bound in wanted[1].split(",")):
            lines.append(f"{name} {found[name]}, not {wanted[1]}")
    return lines


def _holds(version, bound):
    """True if a version is within a bound such as >=3.10 or <4."""
    sign, number = re.fullmatch(r"([<>]=?)([0-9.]+)", bound).groups()
    a, b = (tuple(map(int, re.match(r"[0-9.]*[0-9]", text)[0].split("."))) for text in (version, number))
    a, b = (part + (0,) * (4 - len(part)) for part in (a, b))
    return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[sign]
