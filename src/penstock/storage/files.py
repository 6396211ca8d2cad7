"""The operating system's files: the only module that opens, writes, syncs, renames, maps or locks them.

Everything is a plain function, called as `files.name(...)`, so that a fault test can replace any one of them. What the
system refuses is raised as an error of ours, which names the file; only that a name is there or not, or that others have a lock, is
told as the system does: callers ask to know.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import select
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, Final, NoReturn, ParamSpec, TypeVar

from penstock.errors import NotALog, PenstockError, StorageFailed, SyncFailed, storage_failed

# No futex, robust mutex or fallocate: what a machine without them does. Tests run everything both ways.
PORTABLE: Final = os.environ.get("PENSTOCK_PORTABLE", "") not in ("", "0") or sys.platform != "linux"

_NETWORK: Final = {
    *(
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "ocfs2",
        "gfs2",
    ),
    *(
        "glusterfs",
        "fuse.glusterfs",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.rclone",
        "fuse.blobfuse2",
        "davfs",
    ),
}
_KEEP_SIZE: Final = 0x01
_PUNCH: Final = 0x03  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_AT_FDCWD: Final = -100
_EXCHANGE: Final = 2  # RENAME_EXCHANGE
_ZEROS: Final = bytes(1 << 20)
_SEND_BYTES: Final = 1 << 30  # in one call: some systems refuse more than 2 GiB

# What callers ask to know, and no failure of the storage.
_ANSWERS: Final = (FileNotFoundError, FileExistsError, NotADirectoryError, BlockingIOError)

_P = ParamSpec("_P")
_W = TypeVar("_W", int, Path)
_R = TypeVar("_R")


def name_of(fd: int) -> str:
    """The path of an open file, as far as the system tells."""
    try:
        if sys.platform == "darwin":
            return os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return f"file descriptor {fd}"


def told(error: OSError, where: int | Path) -> OSError:
    """An error of the system's as one of ours, with the file's name: of one that is open already the system does not say it."""
    if isinstance(error, PenstockError):
        return error
    path = error.filename or (name_of(where) if isinstance(where, int) else str(where))
    if isinstance(error, _ANSWERS):
        error.filename = path
        return error
    return storage_failed(os.fsdecode(path), error)


def tell(error: OSError, where: int | Path) -> NoReturn:
    """Raise it so."""
    ours = told(error, where)
    try:
        if ours is error:
            raise error
        raise ours from error
    finally:
        # Or they would hold this frame, and it them, with all that callers have open, until the collector comes.
        del error, ours


def _telling(call: Callable[Concatenate[_W, _P], _R]) -> Callable[Concatenate[_W, _P], _R]:
    """Have a function raise errors of ours. Its first argument is the file."""

    @functools.wraps(call)
    def telling(where: _W, /, *args: _P.args, **options: _P.kwargs) -> _R:
        try:
            return call(where, *args, **options)
        except OSError as error:
            tell(error, where)

    return telling


def open_read(path: Path) -> int:
    return _a_file(path, _open(path, os.O_RDONLY))


def open_write(path: Path) -> int:
    return _a_file(path, _open(path, os.O_RDWR))


def create(path: Path, *, exclusive: bool = True) -> int:
    """With the caller's umask, and never to be written by everybody."""
    return _a_file(path, _open(path, os.O_RDWR | os.O_CREAT | (os.O_EXCL if exclusive else 0)))


def _open(path: Path, flags: int) -> int:
    """What a link leads to is somebody else's: it is neither read as a log's nor written to. Nor is waited for whoever is to come to the
    other end of a pipe."""
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            return os.open(path, flags | os.O_NONBLOCK, 0o664)
        except BlockingIOError:  # a file that another program has leased, and gives back when it is asked to
            return os.open(path, flags, 0o664)
    except IsADirectoryError as error:
        raise _no_file(path) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK) and path.is_symlink():
            raise _a_link(path) from error
        tell(error, path)


def _a_file(path: Path, fd: int) -> int:
    """What was opened, if it is a file: a pipe would be read for ever, and a device is more than it seems."""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise _no_file(path)


def _no_file(path: Path) -> NotALog:
    return NotALog(
        f"{path}: no regular file, where a log has one of its own; move it away, or restore the file from a copy"
    )


def _a_link(path: Path) -> NotALog:
    return NotALog(f"{path}: a link, where a log has its own; put there what it leads to")


def refuse_links(path: Path, top: Path) -> None:
    """Neither a directory nor those above it up to `top` may lead elsewhere. That itself may: it is what was asked for."""
    while path != top:
        if path.is_symlink():
            raise _a_link(path)
        path = path.parent


def temporary_directory() -> Path:
    return Path(tempfile.gettempdir())


@_telling
def create_unnamed(directory: Path) -> int:
    """A new file in a directory, or where temporary files go if it cannot be written, that is gone when it is closed."""
    for place in (directory, temporary_directory()):
        try:
            if not PORTABLE:
                with contextlib.suppress(OSError):  # not every file system can do this
                    return os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fd, name = tempfile.mkstemp(dir=place, prefix="unpacked.", suffix=".tmp")
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        else:
            remove(Path(name))
            return fd
    raise PermissionError(errno.EACCES, "no directory for temporary files can be written", str(directory))


def close(fd: int) -> None:
    try:
        try:
            if fd in _lockable:
                fcntl.flock(fd, fcntl.LOCK_UN)  # a child forked just now may have the file open for a moment yet
        finally:
            _lockable.discard(fd)
            os.close(fd)
    except OSError as error:
        tell(error, fd)


def size(fd: int) -> int:
    try:
        return os.fstat(fd).st_size
    except OSError as error:
        tell(error, fd)


def is_full(error: BaseException) -> bool:
    """Whether this says that the disk, or the user's share of it, is full. A sync that fails for that is a failed sync."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full and not isinstance(error, StorageFailed | SyncFailed)


@_telling
def used_bytes(path: Path) -> int:
    """What a file takes of the disk: less than its size where it is sparse."""
    st = path.stat()
    return min(st.st_size, st.st_blocks * 512)


@_telling
def stamp(path: Path) -> tuple[int, int] | None:
    """What is another whenever a file was replaced; None when there is none."""
    try:
        st = path.stat()
    except FileNotFoundError:
        return None
    return st.st_ino, st.st_mtime_ns


def has_name(fd: int) -> bool:
    """Whether an open file is still in some directory: one that was removed or replaced is not."""
    return os.fstat(fd).st_nlink > 0


def identity(file: int | Path) -> tuple[int, int]:
    """Device and inode: a copied file has others."""
    try:
        st = os.fstat(file) if isinstance(file, int) else file.stat()
    except OSError as error:
        tell(error, file)
    return st.st_dev, st.st_ino


@_telling
def changed_at(path: Path) -> float:
    """When it was, in seconds since 1970; of a directory, when a name in it was."""
    return path.stat().st_mtime


def read(fd: int, offset: int, length: int) -> bytes:
    """Up to `length` bytes from `offset`; fewer only at the end of the file."""
    parts = []
    try:
        while length > 0:
            part = os.pread(fd, length, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
    except OSError as error:
        tell(error, fd)
    return b"".join(parts)


@_telling
def write(fd: int, data: bytes | memoryview, offset: int) -> None:
    """All of `data`, however many calls that takes."""
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, offset)
        view = view[n:]
        offset += n


@_telling
def truncate(fd: int, length: int) -> None:
    os.ftruncate(fd, length)


@_telling
def allocate(fd: int, offset: int, length: int) -> None:
    """Put real blocks with zeros under a range that nobody writes yet. Raises ENOSPC having changed no content.

    Blocks that were only allocated cost ten times as much at the first touch of each page, and make every sync slower.
    """
    if not PORTABLE:
        os.posix_fallocate(fd, offset, length)
    while length > 0:
        # Without fallocate, page by page: a larger write that fails half-way may leave one large page in the kernel's cache
        # that is only partly allocated, and a store through a map to any part of that kills (seen on ext4).
        part = min(length, len(_ZEROS) if not PORTABLE else mmap.PAGESIZE - offset % mmap.PAGESIZE)
        write(fd, memoryview(_ZEROS)[:part], offset)
        offset += part
        length -= part


def lengthen(fd: int, length: int) -> None:
    """Make a file that is shorter so long, with blocks, and change nothing that is in it: of several who find it empty none wipes what
    another, who was there before, has written since."""
    if hasattr(os, "posix_fallocate"):
        reserve(fd, 0, length)
    else:
        allocate(fd, 0, length)


@_telling
def reserve(fd: int, offset: int, length: int) -> None:
    """Put blocks under a range without writing them. Raises ENOSPC having changed no content."""
    if length > 0:
        os.posix_fallocate(fd, offset, length)


@_telling
def reserve_beyond(fd: int, offset: int, length: int) -> None:
    """Put blocks under a range behind the end of a file, which stays where it is, if the system can: what is written there next finds room
    for all of it. Raises ENOSPC having changed nothing that can be read."""
    if (
        PORTABLE
        or _libc is None
        or _libc.fallocate(fd, _KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(length)) == 0
    ):
        return
    code = ctypes.get_errno()
    if code not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINTR):
        raise OSError(code, os.strerror(code))


def punch(fd: int, offset: int, length: int) -> None:
    """Give the blocks of a range back: it reads as zeros. Where that cannot be done the blocks stay, zeroed."""
    if length <= 0 or give_back(fd, offset, length):
        return
    allocate_end = min(size(fd), offset + length)
    while offset < allocate_end:
        offset = _next_data(fd, offset, allocate_end)
        part = min(allocate_end - offset, len(_ZEROS))
        if read(fd, offset, part) != _ZEROS[:part]:
            write(fd, memoryview(_ZEROS)[:part], offset)
        offset += part


@_telling
def give_back(fd: int, offset: int, length: int) -> bool:
    """Give the blocks and the memory of a range back, which then reads as zeros, if the system can; whether it could."""
    if PORTABLE or _libc is None:
        return False
    if _libc.fallocate(fd, _PUNCH, ctypes.c_int64(offset), ctypes.c_int64(length)) == 0:
        return True
    code = ctypes.get_errno()
    if code not in (errno.EOPNOTSUPP, errno.ENOSYS):
        raise OSError(code, os.strerror(code))
    return False


def _next_data(fd: int, offset: int, end: int) -> int:
    """The next byte that has a block below it, where that can be asked: holes need no reading."""
    try:
        return min(end, os.lseek(fd, offset, os.SEEK_DATA))
    except OSError as error:
        return end if error.errno == errno.ENXIO else offset
    except AttributeError:
        return offset


def holes_from(path: Path, offset: int, end: int) -> int:
    """The byte from which on a file has no block up to `end`, and so nothing but zeros, as far as can be told; `offset` at the least."""
    with opened(path) as fd:
        return end_of_data(fd, offset, end)


def end_of_data(fd: int, offset: int, end: int) -> int:
    """The same of an open file."""
    with contextlib.suppress(OSError, AttributeError):  # where it cannot be asked
        at = offset
        while at < end:
            data = _next_data(fd, at, end)
            if data >= end:
                return at
            at = os.lseek(fd, data, os.SEEK_HOLE)
    return end


@_telling
def duplicate(fd: int) -> int:
    """A descriptor of the same open file, which stays open when the other is closed."""
    return os.dup(fd)


@contextmanager
def _syncing(where: int | Path) -> Iterator[None]:
    """No room now is not DiskFull: what was written before may be gone."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            path = name_of(where) if isinstance(where, int) else where
            raise StorageFailed(path, error.errno or errno.EIO, error.strerror or "") from error
        raise


@_telling
def sync(fd: int) -> None:
    """The file's data, and what is needed to read it back, is on the disk when this returns."""
    with _syncing(fd):
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(fd)


@_telling
def sync_directory(path: Path) -> None:
    """The names in a directory are on the disk when this returns."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _syncing(path):
            os.fsync(fd)
    finally:
        os.close(fd)


@_telling
def rename(old: Path, new: Path) -> None:
    old.replace(new)


@_telling
def link(old: Path, new: Path) -> None:
    """Give a file a second name, unless there is something of that name: then FileExistsError."""
    os.link(old, new)


@_telling
def exchange(one: Path, other: Path) -> None:
    """Let two names change places in one step: whoever looks sees the one or the other."""
    if _libc is None or not hasattr(_libc, "renameat2"):
        raise OSError(errno.ENOSYS, "names cannot change places in one step on this system", str(one))
    if _libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one), None, str(other))


@_telling
def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


@_telling
def remove_tree(path: Path) -> None:
    """A directory and all in it, if it is there. A crash leaves some of it, to be removed by the next call."""
    if path.is_dir():
        shutil.rmtree(path)


def exists(path: Path) -> bool:
    """Whether there is anything of that name, if only a link that leads nowhere."""
    return os.path.lexists(path)


@_telling
def is_directory(path: Path) -> bool:
    return path.is_dir()


@_telling
def is_no_directory(path: Path) -> bool:
    """Whether something else is there, in one look: another process may just be making the directory."""
    try:
        return not stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


@_telling
def children(path: Path) -> list[Path]:
    """What is in a directory."""
    return list(path.iterdir())


@_telling
def is_regular(path: Path) -> bool:
    """Whether it is a file itself: no directory, no link, nothing special."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def make_path(path: Path) -> None:
    """Create a directory, with those above it, and make each new name durable; and that of the last one that is there already: whoever
    made it may have died before he did. Not one that is another file system's, nor in a directory that we may not read."""
    there = path.absolute()
    while not there.is_dir():
        there = there.parent
    with contextlib.suppress(PermissionError):
        if identity(there)[0] == identity(there.parent)[0]:
            sync_directory(there.parent)
    make_directories(path.absolute(), there)


def make_directories(path: Path, top: Path) -> None:
    """Create `path` below `top` and make each new name durable."""
    missing = []
    while not path.is_dir() and path != top.parent:
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        make_directory(directory)
        sync_directory(directory.parent)


@_telling
def make_directory(path: Path) -> None:
    """Create one, if it is not there. Its name is durable when the directory that it is in was synced."""
    path.mkdir(exist_ok=True)


def temporary(path: Path) -> Path:
    """The name of a file until it is whole: no other thread has the same."""
    return path.with_name(f"{path.name}.{_number_of(os.getpid())}-{threading.get_native_id()}.tmp")


@functools.lru_cache(maxsize=1)
def _number_of(pid: int) -> int:
    """Of this process, and of no other: one in another container may have the same pid."""
    return int.from_bytes(os.urandom(6), "big")


def replace(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Put a small file in place of another: a reader, also after a power cut if `durable`, sees the old or the new one whole."""
    made = temporary(path)
    fd = create(made, exclusive=False)
    try:
        try:
            truncate(fd, 0)
            write(fd, data, 0)
            if durable:
                sync(fd)
        finally:
            close(fd)
        rename(made, path)
    except BaseException:
        remove(made)
        raise


def create_once(path: Path, data: bytes) -> bool:
    """Write a small file unless it is there already, whole or not at all; False when it was there."""
    made = temporary(path)
    replace(made, data)
    try:
        link(made, path)
    except FileExistsError:
        return False
    finally:
        remove(made)
    sync_directory(path.parent)
    return True


def copy_range(source: Path, start: int, end: int, target: Path) -> None:
    """Write a part of a file to a new one, and make it durable."""
    with opened(source) as fd:
        out = create(target)
        try:
            at = start
            while (at := _next_data(fd, at, end)) < end:  # what is a hole stays one
                part = read(fd, at, min(end - at, len(_ZEROS)))
                write(out, part, at - start)
                at += len(part)
            if size(out) < end - start:
                truncate(out, end - start)
            sync(out)
        finally:
            close(out)
    sync_directory(target.parent)


def walk(top: Path) -> Iterator[str]:
    """Paths of all files below `top`, relative to it, with `/` between the parts. What cannot be listed is an error, or a log would
    seem to have nothing there; but for what a file system keeps for itself, where a log has one of its own."""
    stack = [("", os.fspath(top))]
    while stack:
        within, directory = stack.pop()
        try:
            with os.scandir(directory) as found:
                entries = sorted((entry.name, entry) for entry in found)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if within == "lost+found/" and isinstance(error, PermissionError):
                continue
            tell(error, Path(directory))
        below = []
        for name, entry in entries:
            if not entry.is_dir():
                yield within + name
            elif not entry.is_symlink():
                below.append((f"{within}{name}/", entry.path))
        stack += reversed(below)


def walk_below(top: Path, place: Path) -> Iterator[str]:
    """The same for files below a place within `top`."""
    return (f"{place.relative_to(top).as_posix()}/{name}" for name in walk(place))


@_telling
def map_read(fd: int, length: int) -> mmap.mmap | bytes:
    """The file's first `length` bytes; `bytes` when there are none, since nothing cannot be mapped."""
    return mmap.mmap(fd, length, access=mmap.ACCESS_READ) if length else b""


@_telling
def map_write(fd: int, length: int) -> mmap.mmap:
    return mmap.mmap(fd, length)


def open_to_lock(path: Path, *, make: bool = True, exclusive: bool = False) -> int:
    """A file, made if it is not there, or to be read if not `make`, whose locks are this process's alone: a forked child has it open, too,
    and would keep them."""
    _opening.append(path)
    try:
        fd = create(path, exclusive=exclusive) if make else _open(path, os.O_RDONLY)  # a directory has locks, too
        _lockable.add(fd)
        return fd
    finally:
        _opening.remove(path)


@_telling
def lock(fd: int, *, shared: bool, wait: bool = True) -> bool:
    """Take (or change to) a lock on a file that was opened for that, kept until it is closed; False when not waiting and it is taken."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def lock_holders(fd: int) -> list[int]:
    """The processes that have a lock on an open file, as far as the system tells."""
    inode, found = f":{os.fstat(fd).st_ino}", set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].endswith(inode):
                found.add(int(fields[4]))
    return sorted(found)


@_telling
def unlock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)


def advise_sequential(fd: int) -> None:
    """Say that a file will be read from front to back, so that more of it is read ahead."""
    if hasattr(os, "posix_fadvise") and not PORTABLE:
        with contextlib.suppress(OSError):  # advice: what does not take it is read all the same
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)


def send(sock_fd: int, source: Path | int, start: int, end: int, timeout_s: float | None = None) -> int:
    """Send the bytes start to end of a file, given as a path or open, to a socket, blocking or not; how many were sent: fewer
    only where the file ends sooner. Waits while the other side takes no more, for so long at a time, and then raises TimeoutError."""
    if isinstance(source, Path):
        with opened(source) as fd:
            advise_sequential(fd)
            return send(sock_fd, fd, start, end, timeout_s)
    at = _send_by_system(sock_fd, source, start, end, timeout_s) if hasattr(os, "sendfile") and not PORTABLE else start
    while at < end and (part := memoryview(read(source, at, min(end - at, len(_ZEROS))))):
        at += len(part)
        while part:
            try:
                part = part[os.write(sock_fd, part) :]
            except BlockingIOError:
                _wait_writable(sock_fd, timeout_s)
    return at - start


def _send_by_system(sock_fd: int, fd: int, at: int, end: int, timeout_s: float | None) -> int:
    """Send without a copy; where it came to, which may be short of the end: not every file, or socket, can do it."""
    while at < end:
        try:
            n = os.sendfile(sock_fd, fd, at, min(end - at, _SEND_BYTES))
        except BlockingIOError:
            _wait_writable(sock_fd, timeout_s)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSOCK, errno.EOPNOTSUPP):
                raise
            break
        else:
            if n == 0:
                break
            at += n
    return at


def _wait_writable(fd: int, timeout_s: float | None) -> None:
    """Sleep until something can be written, or writing would tell why it cannot."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        ready: object = poll.poll(None if timeout_s is None else timeout_s * 1000)
    else:
        ready = select.select([], [fd], [], timeout_s)[1]
    if not ready:
        raise TimeoutError(f"the other side has taken nothing for {timeout_s:g} s")


@contextmanager
def opened(path: Path, *, write: bool = False) -> Iterator[int]:
    """A file opened for reading, or for writing too, and closed again."""
    fd = open_write(path) if write else open_read(path)
    try:
        yield fd
    finally:
        close(fd)


@contextmanager
def opened_to_lock(path: Path, *, make: bool = False) -> Iterator[int]:
    """The same for a file that is to be locked meanwhile."""
    fd = open_to_lock(path, make=make)
    try:
        yield fd
    finally:
        close(fd)


def now_us() -> int:
    return time.time_ns() // 1000


def boot_id() -> bytes:
    """Sixteen bytes that change with every boot of the machine."""
    if told := _boot_id_told():
        return told
    booted = int(time.time() - time.monotonic()) // 60  # by the minute: the two clocks drift apart
    return booted.to_bytes(16, "little")


@functools.cache
def _boot_id_told() -> bytes:
    """As the system says it; empty if it does not. No process lives in two boots."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return b""


def pid_namespace() -> int:
    """Which numbering of processes this one is in, each container has its own; 0 when the system does not say."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def filesystem(path: Path) -> str:
    """The type of the file system that `path` lies on, such as ext4 or nfs4; empty when it cannot be told."""
    best, kind = "", ""
    real = os.path.realpath(path)
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in mounts:
        point = line.split(" ", 5)[4]
        if "\\" in point:
            point = point.encode().decode("unicode_escape")
        inside = point == "/" or real == point or real.startswith(point + "/")
        if inside and len(point) >= len(best):
            best, kind = point, line.partition(" - ")[2].split()[0]
    return kind


def is_network(kind: str) -> bool:
    """Whether a file system of this type is shared over a network, where maps and locks hold no promise."""
    return kind in _NETWORK


def _load_libc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None


_libc = _load_libc()

_lockable: set[int] = set()
_opening: list[Path] = []  # to be locked: a fork may come between the opening of a file and the note of it


def _after_fork_in_child() -> None:
    """Locks belong to an open file, and this is the parent's: were it kept open here, they would be kept, too. Nothing else is put in its
    place than what harms nobody: the numbers are still known to objects that will close them."""
    _lockable.update(_just_opened())
    _opening.clear()
    fds = sorted(_lockable)
    _lockable.clear()
    if fds:
        nothing = _open_nothing(fds[0])
        for fd in fds:
            if fd != nothing:
                os.dup2(nothing, fd, inheritable=False)
        if nothing not in fds:
            os.close(nothing)


def _just_opened() -> Iterator[int]:
    """Descriptors that a thread of the parent's had opened, and not noted. No lock keeps a fork from coming then: whoever forks may wait for
    other locks that this thread has."""
    wanted = set()
    for path in _opening:
        with contextlib.suppress(OSError):  # not made yet
            wanted.add(identity(path))
    if wanted:
        with contextlib.suppress(OSError):  # no more can be opened to look
            for fd in [int(file.name) for file in Path("/dev/fd").iterdir()]:
                with contextlib.suppress(OSError):  # that of this very look
                    if identity(fd) in wanted:
                        yield fd


def _open_nothing(spare: int) -> int:
    """What neither tells nor takes anything; where no more can be opened, in place of another one."""
    with contextlib.suppress(OSError):
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        os.close(spare)
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    read, write = os.pipe()
    os.close(write)
    return read


os.register_at_fork(after_in_child=_after_fork_in_child)
