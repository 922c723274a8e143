"""The folder in a database server's data directory for its fork server and the compile caches of its trainers.

The folder belongs to the server's user alone, and backups leave it out. Greenplum's segments on one host can share the
folder of one of them. Standard library only: backends import this module.
"""

import errno
import glob
import hashlib
import os

import mop_udf

FOLDER = "pgsql_tmp.pg_mop"  # in the data directory: pg_basebackup and pg_rewind skip names with this beginning
SHARES = "shares"  # a file that names the data directory of another server whose folder is used instead


def share(directory: str) -> None:
    """Let this server use the folder of the server with this data directory: its fork server and its compile caches.

    On Greenplum, the extension's owner calls this (mop_share_host) for the segments of a host. Where the folder is not
    safe, or the disk is full, each segment uses its own folder.
    """
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


def _shares(folder: str) -> str | None:
    """The data directory named in a folder's file SHARES, or None."""
    try:
        with open(os.path.join(folder, SHARES), "rb") as file:
            return os.fsdecode(file.read())
    except FileNotFoundError:
        return None


def own_folder() -> tuple[str, int, int]:
    """(path, descriptor, postmaster's process id) of the folder that this backend uses.

    It is the folder of another server where the folders are shared and that server is running. Raises OSError where no
    folder is safe.
    """
    directory = os.getcwd()  # a backend's working directory is its server's data directory
    if (server := _server(directory)) != os.getppid():
        raise FileNotFoundError(errno.ENOENT, "no server's own process")
    folder, opened = _folder(directory)
    try:
        if (other := _shares(folder)) not in (None, directory) and os.path.isabs(other):
            running = _server(other)
            # (the process id may have been reused; a server's working directory is its data directory)
            if running != 1 and os.path.samefile(f"/proc/{running}/cwd", other):
                shared = _folder(other)
                os.close(opened)
                return *shared, running
    except (OSError, ValueError):
        pass
    return folder, opened, server


def _server(directory: str) -> int:
    """The postmaster's process id from a data directory. Raises OSError where no server is running."""
    with open(os.path.join(directory, "postmaster.pid"), "rb") as file:
        return int(file.readline())


def _folder(directory: str) -> tuple[str, int]:
    """(path, descriptor) of the folder in a data directory, made if needed. Raises OSError where other users have
    access.
    """
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


_versions: dict[tuple[str, str], str] = {}


def version(home: str, keras_backend: str) -> str:
    """A name for the installed packages: a fork server with this name has imported the same files as this backend."""
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
