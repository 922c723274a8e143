"""`gpu_trial.sh folder`: what a machine without network needs, by apt and pip.

FOLDER is the folder; VERSION the other machine's version of Python; HEADERS a directory with Python.h of that version.

The sources are those of the newest PostgreSQL in Debian's SUITE (by default bookworm) that builds without Bison, Flex and Perl.
Debian signs their checksums, and apt verifies them.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WITH_GENERATED_FILES = range(16, 12, -1)  # versions of PostgreSQL whose sources contain what Bison, Flex and Perl make
# packages that pg_mop and its tests import, without frameworks and NumPy, which the machine has
PACKAGES = ("keras", "dill", "psycopg2-binary", "setproctitle", "h5py", "testing.postgresql", "pytest")
TOO_LARGE = ("numpy",)  # needed by these packages, and by the frameworks
GLIBC = (5, 12, 17, 24, 26, 27, 28, 31, 34, 35)  # minor versions of glibc in names of wheels
MOST_MB = 60
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Ubuntu's archive, and its suite with a version of Python: many machines with GPUs have Ubuntu's Python
UBUNTU, UBUNTU_KEYRING = "http://archive.ubuntu.com/ubuntu", "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
UBUNTU_LIBRARIES = {"3.12": ("noble", "libpython3.12t64"), "3.10": ("jammy", "libpython3.10")}


def place():
    """The folder."""
    return pathlib.Path(os.environ.get("FOLDER", ROOT / ".local" / "gpu-folder")).absolute()


def make():
    """Make the folder; the exit status."""
    into, version = place(), os.environ.get("VERSION", "3.12")
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            sources(into, scratch)
            library(into, version, scratch)
        wheels(into / "wheels", version)
    except (subprocess.CalledProcessError, OSError, LookupError) as error:
        print(f"gpu_trial: the folder cannot be made: {error}", file=sys.stderr)
        return 1
    headers(into / "include", version)
    size = sum(path.stat().st_size for path in into.rglob("*") if path.is_file()) / (1 << 20)
    print(f"{into}: {size:.0f} MiB\n" + "\n".join(f"  {path.relative_to(into)}" for path in sorted(into.glob("*"))))
    if size > MOST_MB:
        print(f"gpu_trial: the folder is larger than {MOST_MB} MiB", file=sys.stderr)
        return 1
    return 0


def mirror():
    """The URL of the mirror of Debian: MIRROR, or apt's on this machine, or Debian's own."""
    if "MIRROR" in os.environ:
        return os.environ["MIRROR"]
    for path in ("/etc/apt/sources.list", *map(str, pathlib.Path("/etc/apt/sources.list.d").glob("*"))):
        if os.path.isfile(path):
            found = re.search(
                r"(?m)^(?:URIs:|deb(?: \[[^]]*\])?) *(https?://\S*/debian)/?(?:\s|$)", pathlib.Path(path).read_text()
            )
            if found:
                return found[1]
    return "http://deb.debian.org/debian"


def sources(into, scratch):
    """PostgreSQL's sources and Debian's program make, into a folder. Raises LookupError if the suite has no such sources."""
    suite = os.environ.get("SUITE", "bookworm")
    apt = apt_get(pathlib.Path(scratch, "debian"), f"[signed-by={KEYRING}] {mirror()} {suite} main")
    subprocess.run([*apt, "update"], check=True)
    for number in WITH_GENERATED_FILES:
        command = [*apt, "source", "--download-only", f"postgresql-{number}"]
        done = subprocess.run(command, cwd=into, capture_output=True, text=True)
        if done.returncode == 0:
            break
    else:
        raise LookupError(
            f"apt gives no sources of a PostgreSQL that builds without Bison, Flex and Perl in {suite}: {done.stderr.strip()}"
        )
    subprocess.run([*apt, "download", "make"], cwd=into, check=True)


def library(into, version, scratch):
    """Ubuntu's shared library of Python, for a machine with Ubuntu's Python and without this package."""
    if version not in UBUNTU_LIBRARIES or not os.path.exists(UBUNTU_KEYRING):
        print(f"without Ubuntu's libpython{version}: this needs {UBUNTU_KEYRING} (package ubuntu-keyring)")
        return
    suite, package = UBUNTU_LIBRARIES[version]
    apt = apt_get(pathlib.Path(scratch, "ubuntu"), f"[signed-by={UBUNTU_KEYRING}] {UBUNTU} {suite} main", source=False)
    for command in (["update"], ["download", package]):
        done = subprocess.run([*apt, *command], cwd=into, capture_output=True, text=True)
        if done.returncode:
            print(f"without Ubuntu's {package}: {done.stderr.strip()}")
            return


def apt_get(place, line, source=True):
    """The beginning of an apt-get command that knows one source of packages alone; `place`: its new directory."""
    (place / "lists" / "partial").mkdir(parents=True)
    entries = [f"deb {line.replace('[', '[arch=amd64 ', 1)}", *([f"deb-src {line}"] if source else [])]
    (place / "sources").write_text("\n".join(entries) + "\n")
    options = {
        "Dir::Etc::sourcelist": place / "sources",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::Lists": place / "lists",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",
    }
    return ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]


def wheels(into, version):
    """The wheels of PACKAGES and of what they need, for a version of Python on x86-64."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBC]
    platforms += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    command += ["--implementation=cp", f"--python-version={version}", *platforms, "--dest", into, *PACKAGES]
    subprocess.run(command, check=True)
    for path in into.glob("*"):
        if path.name.split("-")[0] in TOO_LARGE:
            path.unlink()


def headers(into, version):
    """The headers of Python, for a machine that has only the library: HEADERS, or those of the version on this machine."""
    python = shutil.which(f"python{version}")
    found = python and subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"], capture_output=True, text=True
    )
    include = pathlib.Path(found.stdout.strip()) if found and found.returncode == 0 else None
    include = pathlib.Path(os.environ["HEADERS"]) if "HEADERS" in os.environ else include
    if include and (include / "Python.h").exists():
        shutil.copytree(include, into)
    else:
        print(f"no headers of Python {version} are on this machine: the other machine must have them (Python.h)")
