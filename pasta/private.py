"""Files and directories that only this user can access.

They are created with explicit modes, which are set again if the umask removed bits: code in the
profiled program must not change its umask. Files that another process may have created are
validated before they are trusted. docs/security.md has the threat model.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from pasta.errors import RunError

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
#: Access bits denied to others: all, or write.
ANY_ACCESS = 0o077
WRITE_ACCESS = 0o022


class NotPrivate(RunError):
    """A file or directory that another user could have created or changed."""


def set_umask() -> int:
    """Make new files private, for processes of PASTA alone; returns the previous umask."""
    return os.umask(ANY_ACCESS)


# ---- creation


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents. Raises OSError, also if it exists."""
    if not path.parent.exists():
        try:
            make_directory(path.parent)
        except FileExistsError:
            pass  # another process was faster
    os.mkdir(path, DIRECTORY_MODE)
    if stat.S_IMODE(os.lstat(path).st_mode) & DIRECTORY_MODE != DIRECTORY_MODE:  # the umask
        os.chmod(path, DIRECTORY_MODE)


def make_if_possible(path: Path) -> None:
    """Create a directory; errors are ignored, as a later write reports them."""
    try:
        make_directory(path)
    except OSError:
        pass


def make_or_check_directory(path: Path) -> None:
    """Create a directory, or validate that the existing one is this user's and not writable by
    others.

    Raises OSError, NotPrivate.
    """
    try:
        make_directory(path)
    except FileExistsError:
        os.close(open_directory(path, WRITE_ACCESS))


def create(path: Path, flags: int = os.O_EXCL) -> int:
    """Descriptor of a new file for reading and writing; without O_EXCL also of an existing file.
    Raises OSError."""
    flags |= os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, FILE_MODE)
    _set_mode(descriptor, FILE_MODE)
    return descriptor


def append(path: Path, content: bytes) -> None:
    """Append to a file, which is created if missing. Raises OSError."""
    with open(create(path, os.O_APPEND), "ab") as file:
        file.write(content)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that readers see all or nothing of it. Raises OSError."""
    temporary = path.with_name(f"{path.name}.writing")
    try:
        with open(create(temporary, os.O_TRUNC), "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()  # on a full disk others need the room
        raise


def tighten(directory: Path) -> None:
    """Deny others access to a directory of this user and all below it.

    For files written under another umask. Raises OSError.
    """
    for _, _, files, descriptor in os.fwalk(directory):
        _set_mode(descriptor, DIRECTORY_MODE)
        for name in files:
            if stat.S_ISREG(os.lstat(name, dir_fd=descriptor).st_mode):
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
                _set_mode(file, FILE_MODE)
                os.close(file)


def _set_mode(descriptor: int, mode: int) -> None:
    if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o777 == mode:
        return
    try:
        os.fchmod(descriptor, mode)
    except PermissionError:
        pass  # raised by file systems without modes (vfat, CIFS)


# ---- validation


def open_directory(path: Path, denied: int = ANY_ACCESS) -> int:
    """Descriptor of a directory of this user, no symbolic link, that denies others the access bits
    `denied`. Raises OSError, NotPrivate."""
    descriptor = _opened(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        status = os.fstat(descriptor)
        reason = _objection(status, denied, os.geteuid())
        if reason and not _is_like_new_ones(path, status, denied):
            raise NotPrivate(f"{path}: {reason}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_file(path: Path, flags: int = os.O_RDONLY) -> int:
    """Descriptor of a regular file that only this user can write, in a directory like it. Raises
    OSError, NotPrivate."""
    directory = open_directory(path.parent, WRITE_ACCESS)
    try:
        around = os.fstat(directory)
        # nonblocking: the path may be a FIFO
        descriptor = os.open(
            path.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory
        )
    finally:
        os.close(directory)
    status = os.fstat(descriptor)
    reason = _objection(status, WRITE_ACCESS & ~around.st_mode, around.st_uid)
    if not stat.S_ISREG(status.st_mode):
        reason = "not a regular file"
    if reason:
        os.close(descriptor)
        raise NotPrivate(f"{path}: {reason}")
    return descriptor


def read(path: Path) -> bytes:
    """Content of a file that only this user can write. Raises OSError, NotPrivate."""
    with open(open_file(path), "rb") as file:
        return file.read()


def _opened(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:  # also for symbolic links
        raise NotPrivate(f"{path}: not a directory, or a symbolic link") from None


def _objection(status: os.stat_result, denied: int, owner: int) -> str:
    if status.st_uid != owner:
        return f"belongs to user {status.st_uid}"
    if status.st_mode & denied:
        return f"other users have access (mode {stat.S_IMODE(status.st_mode):03o})"
    return ""


def _is_like_new_ones(path: Path, status: os.stat_result, denied: int) -> bool:
    """Whether new directories there have the same owner and at least these rights, as on file
    systems such as CIFS, vfat or NFS with squashed users."""
    probe = path.parent / f".pasta-{os.urandom(8).hex()}"
    try:
        os.mkdir(probe, DIRECTORY_MODE)
    except OSError:
        return False
    try:
        new = os.lstat(probe)
    finally:
        os.rmdir(probe)
    return new.st_uid == status.st_uid and not status.st_mode & denied & ~new.st_mode


def writers_objection(path: Path, owners: frozenset[int]) -> str:
    """Why a file with code must not be run; empty if only root, this user or `owners` can write it.

    Members of its group are trusted: with user private groups, 0664 is the usual mode.
    """
    around = path.parent.stat()
    reason = _objection_to_code(path, path.stat(), owners)
    if not reason and not around.st_mode & stat.S_ISVTX:
        reason = _objection_to_code(path.parent, around, owners)
    return reason


def objection_to_code(directory: Path) -> str:
    """Why code must not be loaded from a directory; empty if it may, or without the directory."""
    try:
        return _objection_to_code(directory, directory.lstat(), frozenset())
    except OSError:
        return ""


def _objection_to_code(path: Path, status: os.stat_result, owners: frozenset[int]) -> str:
    if status.st_uid not in {0, os.geteuid(), *owners}:
        return f"{path} belongs to user {status.st_uid}"
    return f"any user can write to {path}" if status.st_mode & stat.S_IWOTH else ""


# ---- ownership


def lock(descriptor: int, *, wait: bool = False) -> bool:
    """Lock an open file or directory until it is closed here and in children. False if another
    process has the lock and `wait` is not set, True also if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def is_named(descriptor: int, path: Path) -> bool:
    """Whether a path still refers to an open file."""
    try:
        named = os.lstat(path)
    except OSError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def is_open_elsewhere(path: Path) -> bool | None:
    """Whether another process has a file open or mapped, in any namespace; None if unknown.

    The caller must not have it open. Raises OSError, NotPrivate if it cannot be opened.
    """
    import signal

    descriptor = open_file(path)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # an open elsewhere breaks the lease
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)  # and with it the lease
        signal.signal(signal.SIGIO, before)
    return False
