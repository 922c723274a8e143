"""The folder in a database server's data directory that holds the files of its fork server and of its trainers.

Standard library only.
"""

import errno
import glob
import hashlib
import os

import mop_udf

FOLDER = "pgsql_tmp.pg_mop"  # of the data directory: pg_basebackup and pg_rewind leave out what begins like this
SHARES = "shares"  # names the data directory of the server whose folder is used instead


def environment(keras_backend):
    """That of every process that imports a framework; of its server's it has nothing.

    (PyTorch's Keras would look for GPUs as it is imported, after which no fork could use one: a trainer does it.)
    """
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": "/nonexistent",
        "KERAS_HOME": "/nonexistent",
        "KERAS_BACKEND": keras_backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONHASHSEED": "0",
        "KERAS_TORCH_DEVICE": "cpu",
    }


def share(directory):
    """From now on this server uses what the one with that data directory has: its fork server, and what is kept beside
    that. Greenplum's segments on a host are told so by the extension's owner (mop_share_host), so that one has it for
    all. Where there is no folder to trust, or the disk is full, each has its own."""
    try:
        folder, opened = _folder(os.getcwd())
        os.close(opened)
        if _shares(folder) != directory:
            path = os.path.join(folder, SHARES)
            made = f"{path}.{os.getpid()}"
            try:
                with open(made, "wb") as file:
                    file.write(os.fsencode(directory))
                os.replace(made, path)
            except BaseException:
                os.unlink(made)
                raise
    except (OSError, ValueError):
        pass


def _shares(folder):
    """The data directory that a folder names, or None."""
    try:
        with open(os.path.join(folder, SHARES), "rb") as file:
            return os.fsdecode(file.read())
    except FileNotFoundError:
        return None


def own_folder():
    """(path, descriptor, process id of the server) of the folder of the server whose backend this is, or of the one
    that it shares that of, as long as it is up. Raises OSError where there is none to trust."""
    directory = os.getcwd()  # a backend is in its server's data directory
    if (server := _server(directory)) != os.getppid():
        raise FileNotFoundError(errno.ENOENT, "no server's own process")
    folder, opened = _folder(directory)
    try:
        if (other := _shares(folder)) not in (None, directory) and os.path.isabs(other):
            running = _server(other)
            # (the number may be another process's by now; a server is in its data directory)
            if running != 1 and os.path.samefile(f"/proc/{running}/cwd", other):
                shared = _folder(other)
                os.close(opened)
                return *shared, running
    except (OSError, ValueError):
        pass
    return folder, opened, server


def _server(directory):
    """The process id of the server of a data directory, as that says. Raises OSError where it says none."""
    with open(os.path.join(directory, "postmaster.pid"), "rb") as file:
        return int(file.readline())


def _folder(directory):
    """(path, descriptor) of the folder in a data directory: its user's alone. Raises OSError where it is not."""
    folder = os.path.join(directory, FOLDER)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    status = os.fstat(opened)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(opened)
        raise PermissionError(errno.EACCES, "not the server's own", folder)
    return folder, opened


_versions = {}


def version(home, keras_backend):
    """Names the packages as they are on disk: what a fork server has imported is what this backend would."""
    if (home, keras_backend) not in _versions:
        own = os.path.dirname(os.path.abspath(mop_udf.__file__))
        digest = hashlib.sha256(f"{home} {own}".encode())
        for path in sorted(
            [*glob.glob(f"{own}/**/*.py", recursive=True), *filter(os.path.isdir, [mop_udf.packages(home)])]
        ):
            status = os.stat(path)
            digest.update(f"{path} {status.st_mtime_ns} {status.st_size}".encode())
        _versions[home, keras_backend] = f"{keras_backend}-{digest.hexdigest()[:16]}"
    return _versions[home, keras_backend]
