"""A part of a file sent to a socket: whole, in order, by the system or by copying, whether the socket blocks or not."""

from __future__ import annotations

import errno
import os
import random
import select
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.storage import files
from tests.support import until

SIZE = 5_000_003
DATA = random.Random(1).randbytes(SIZE)


def no_sendfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sendfile", raising=False)


def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PORTABLE", True)
    monkeypatch.setattr(os, "sendfile", refused(AssertionError("sendfile was called")))


def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PORTABLE", False)
    monkeypatch.setattr(os, "sendfile", refused(OSError(errno.EINVAL, "not from this file system")))


def by_system(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(os, "sendfile"):
        pytest.skip("no sendfile here")
    read = files.read

    def not_copied(fd: int, offset: int, length: int) -> bytes:
        assert not read(fd, offset, length), "it was copied"
        return b""  # at the end of the file

    monkeypatch.setattr(files, "PORTABLE", False)
    monkeypatch.setattr(files, "read", not_copied)


def refused(error: Exception) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


@pytest.fixture(params=[by_system, no_sendfile, portable, refusing])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    request.param(monkeypatch)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    return path


@pytest.fixture(params=["socketpair", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """(to send by, to receive by)"""
    if request.param == "socketpair":
        here, there = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            here = socket.create_connection(server.getsockname())
            there, _ = server.accept()
    with here, there:
        yield here, there


class Receiver(threading.Thread):
    """Receives in the background what comes until the other side ends it; from the start, or when it is let go."""

    def __init__(self, sock: socket.socket, *, wait: bool = False) -> None:
        super().__init__()
        self.sock, self.got, self.go = sock, bytearray(), threading.Event()
        if not wait:
            self.go.set()
        self.start()

    def run(self) -> None:
        self.go.wait(60)
        while part := self.sock.recv(1 << 16):
            self.got += part


def sent(here: socket.socket, receiver: Receiver, source: Path | int, start: int, end: int) -> tuple[int, bytes]:
    try:
        count = files.send(here.fileno(), source, start, end)
    finally:
        receiver.go.set()
        here.shutdown(socket.SHUT_WR)
        receiver.join(60)
    return count, bytes(receiver.got)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize(("start", "end"), [(0, SIZE), (1, SIZE - 1), (4096, 3 << 20), (SIZE - 1, SIZE)])
def test_a_part_of_a_file(
    pair: tuple[socket.socket, socket.socket], source: Path, blocks: bool, start: int, end: int
) -> None:
    here, there = pair
    here.setblocking(blocks)
    count, got = sent(here, Receiver(there), source, start, end)
    assert count == end - start
    assert got == DATA[start:end]


@pytest.mark.usefixtures("way")
def test_an_open_file_stays_open_and_where_it_was(pair: tuple[socket.socket, socket.socket], source: Path) -> None:
    here, there = pair
    with source.open("rb") as file:
        assert file.read(7) == DATA[:7]
        assert sent(here, Receiver(there), file.fileno(), 100, 1_000_000) == (999_900, DATA[100:1_000_000])
        assert file.read(7) == DATA[7:14]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("start", "end"), [(0, 0), (5, 5), (5, 4)])
def test_nothing(pair: tuple[socket.socket, socket.socket], source: Path, start: int, end: int) -> None:
    here, there = pair
    assert sent(here, Receiver(there), source, start, end) == (0, b"")


@pytest.mark.usefixtures("way")
def test_a_file_that_ends_sooner(pair: tuple[socket.socket, socket.socket], source: Path) -> None:
    here, there = pair
    assert sent(here, Receiver(there), source, SIZE - 1000, SIZE + 1000) == (1000, DATA[-1000:])


def test_a_file_that_begins_later(pair: tuple[socket.socket, socket.socket], source: Path) -> None:
    here, there = pair
    assert sent(here, Receiver(there), source, SIZE + 1, SIZE + 1000) == (0, b"")


def is_writable(fd: int) -> bool:
    with selectors.DefaultSelector() as selector:  # select takes no high number
        selector.register(fd, selectors.EVENT_WRITE)
        return bool(selector.select(0))


@pytest.mark.usefixtures("way")
def test_one_that_takes_no_more_is_waited_for_asleep(
    pair: tuple[socket.socket, socket.socket], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    here.setblocking(False)
    receiver = Receiver(there, wait=True)
    waited, wait = 0, files._wait_writable

    def counted(fd: int, timeout_s: float | None) -> None:
        nonlocal waited
        waited += 1
        if waited == 1:
            assert not is_writable(fd)
            threading.Timer(0.3, receiver.go.set).start()
            before, began = time.thread_time(), time.monotonic()
            wait(fd, timeout_s)
            assert time.monotonic() - began > 0.2
            assert time.thread_time() - before < 0.1
        else:
            wait(fd, timeout_s)

    monkeypatch.setattr(files, "_wait_writable", counted)
    assert sent(here, receiver, source, 0, SIZE) == (SIZE, DATA)
    assert waited


@pytest.mark.usefixtures("way")
def test_where_there_is_no_poll(
    pair: tuple[socket.socket, socket.socket], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(select, "poll", raising=False)
    here, there = pair
    here.setblocking(False)
    assert sent(here, Receiver(there), source, 0, SIZE) == (SIZE, DATA)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("blocks", [True, False])
def test_signals_meanwhile(pair: tuple[socket.socket, socket.socket], source: Path, blocks: bool) -> None:
    """They cut calls short; nothing is lost or sent twice."""
    here, there = pair
    here.setblocking(blocks)
    receiver, calls = Receiver(there, wait=True), list[None]()
    main, stop = threading.get_ident(), threading.Event()

    def disturb() -> None:
        while not stop.wait(0.001):
            signal.pthread_kill(main, signal.SIGUSR1)
            if len(calls) > 5:
                receiver.go.set()

    old = signal.signal(signal.SIGUSR1, lambda *_: calls.append(None))
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        assert sent(here, receiver, source, 0, SIZE) == (SIZE, DATA)
    finally:
        stop.set()
        thread.join()
        signal.signal(signal.SIGUSR1, old)
    assert len(calls) > 5


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("blocks", [True, False])
def test_the_other_side_is_gone(pair: tuple[socket.socket, socket.socket], source: Path, blocks: bool) -> None:
    here, there = pair
    here.setblocking(blocks)
    there.close()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        for _ in range(10):
            files.send(here.fileno(), source, 0, SIZE)


@pytest.mark.usefixtures("way")
def test_the_other_side_goes_while_it_is_waited_for(pair: tuple[socket.socket, socket.socket], source: Path) -> None:
    here, there = pair
    here.setblocking(False)
    failed: list[OSError] = []

    def send() -> None:
        try:
            files.send(here.fileno(), source, 0, SIZE)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    until(lambda: not is_writable(here.fileno()), "it takes no more")
    there.close()
    thread.join(60)
    assert [type(error) for error in failed] in ([BrokenPipeError], [ConnectionResetError])


def test_a_missing_file(pair: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.send(pair[0].fileno(), tmp_path / "none", 0, 1)


def test_what_cannot_be_sent_to_says_why(source: Path) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.send(10_000, source, 0, 1)


def test_advice_changes_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with files.opened(source) as fd:
        files.advise_sequential(fd)
        assert files.read(fd, 0, SIZE) == DATA
        monkeypatch.setattr(files, "PORTABLE", True)
        files.advise_sequential(fd)
        monkeypatch.setattr(files, "PORTABLE", False)
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
        files.advise_sequential(fd)


def test_what_takes_no_advice() -> None:
    ends = os.pipe()
    for fd in ends:
        files.advise_sequential(fd)
        os.close(fd)


@pytest.mark.parametrize("way", [None, no_sendfile])
def test_it_waits_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Any) -> None:
    if way is not None:
        way(monkeypatch)
    (tmp_path / "file").write_bytes(DATA)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.05)
        with pytest.raises(TimeoutError, match=r"taken nothing for 0\.05 s"):
            files.send(ours.fileno(), tmp_path / "file", 0, SIZE, ours.gettimeout())
