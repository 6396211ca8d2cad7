"""`penstock append`: stdin to a log of any format."""

from __future__ import annotations

import errno
import io
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from penstock import Journal, Queue, StorageFailed
from penstock.cli.records import Records
from penstock.inspect import detect, find
from penstock.inspect.rows import Rows
from penstock.storage.log import Log
from tests.cli.conftest import COMMAND, FORMATS, Live, Terminal, piped
from tests.support import until

Run = Callable[..., Result]


def payloads(path: Path) -> list[bytes]:
    with Rows(find(path)) as rows:
        return [row.payload for row in rows.now()]


@pytest.mark.parametrize("format", FORMATS)
def test_lines_to_a_new_log(run: Run, path: Path, format: str) -> None:
    sent = [b"line %d" % i for i in range(100_000)]
    done = run("append", path, "--format", format, "--json", input=b"\n".join(sent))
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["records"] == len(sent)
    assert detect(path) == format
    assert payloads(path) == sent
    assert run("append", path, input=b"more\n").exit_code == 0
    assert payloads(path)[-1] == b"more"


@pytest.mark.parametrize("format", FORMATS)
def test_lengths(run: Run, path: Path, format: str) -> None:
    sent = [b"two\nlines", b"x" * 500_000, b"\0"]
    data = b"".join(len(one).to_bytes(4, "big") + one for one in sent)
    done = run("append", path, "--format", format, "--length-prefixed", "--durable", input=data)
    assert done.exit_code == 0, done.output
    assert payloads(path) == sent
    cut = run("append", path, "--length-prefixed", input=data[:20])
    assert cut.exit_code == 1
    assert "the last 7 bytes of the input are no whole record" in cut.stderr
    assert payloads(path) == [*sent, b"two\nlines"]
    assert "is every length 4 bytes" in run("append", path, "--length-prefixed", input=b"\xff" * 8).stderr


def test_a_topic(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "topics" / "orders"
    lines = b"".join(b"%d\n" % i for i in range(9))
    assert run("append", path, "--format", "topic", "--partitions", 3, input=lines).exit_code == 0
    with Rows(find(path)) as rows:
        found = [(row.part.partition, int(row.payload)) for row in rows.now()]
    assert sorted(found) == sorted((i % 3, i) for i in range(9))
    assert run("append", path, "--partition", 2, input=b"here\n").exit_code == 0
    assert payloads(path)[-1] == b"here"
    assert run("append", path, "--key", "customer-7", input=b"keyed\n").exit_code == 0
    assert run("append", path, "--partition", 3, input=b"").exit_code == 2
    assert run("append", path, "--partitions", 4, input=b"").exit_code == 1
    assert run("append", tmp_path / "q", "--format", "queue", "--key", "a", input=b"").exit_code == 2


@pytest.mark.parametrize("options", ["--partitions 0", "--partitions -5", "--partitions 5000", "--partition 0 --key a"])
@pytest.mark.parametrize("there", [False, True])
def test_what_no_topic_can_have_is_wrong_use(run: Run, tmp_path: Path, options: str, there: bool) -> None:
    path = tmp_path / "topics" / "orders"
    if there:
        assert run("append", path, "--format", "topic", input=b"a\n").exit_code == 0
    told = run("append", path, "--format", "topic", *options.split(), input=b"b\n")
    assert (told.exit_code, told.stderr.startswith(f"penstock: {path}: ")) == (2, True), told.output
    assert path.exists() == there


def test_an_empty_line_is_named(run: Run, path: Path) -> None:
    told = run("append", path, "--format", "queue", input=b"a\nb\n\nc\n")
    assert told.exit_code == 1
    assert "; record 3 of the input is empty; record 1 of the input and what follows was not appended" in told.stderr
    assert payloads(path) == []


def test_a_journals_lines_are_a_group(run: Run, path: Path) -> None:
    assert run("append", path, "--format", "journal", input=b"a\nb\n").exit_code == 0
    assert run("append", path, input=b"c\n").exit_code == 0
    with Journal(path) as j:
        assert [(r.payload, r.group, r.complete) for r in j.recovered()] == [
            (b"a", 1, True),
            (b"b", 1, True),
            (b"c", 2, True),
        ]


def test_what_cannot_be_appended_is_told(run: Run, path: Path) -> None:
    told = run("append", path, "--format", "queue", input=b"one\n\nthree\n")
    assert told.exit_code == 1
    assert "of the input and what follows was not appended" in told.stderr


def test_wrong_use(run: Run, path: Path, tmp_path: Path) -> None:
    told = run("append", path, input=b"x\n")
    assert (told.exit_code, "--format" in told.stderr, path.exists()) == (2, True, False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    assert run("append", tmp_path / "other", "--format", "queue", input=b"x\n").exit_code == 2
    Queue(path).close()
    assert run("append", path, "--format", "topic", input=b"x\n").exit_code == 2
    assert "Example: seq 1000 | penstock append " in " ".join(run("append", "--help").stdout.split())


def test_beside_a_live_writer(live: Live) -> None:
    live.append("queue", "before")
    told = piped("append", live.path("queue"), input=b"beside\n")
    assert told.returncode == 0, told.stderr
    assert b"1 record, " in told.stderr
    assert told.stdout == b""
    live.append("queue", "after")
    assert payloads(live.path("queue")) == [b"before", b"beside", b"after"]
    busy = piped("append", live.path("channel"), input=b"x\n")
    assert busy.returncode == 1
    assert str(live.process.pid).encode() in busy.stderr


def test_on_a_terminal(path: Path, terminal: Callable[..., Terminal]) -> None:
    Queue(path).close()
    typed = terminal("append", path)
    typed.type("typed\n")
    until(lambda: payloads(path) == [b"typed"], "a line is appended before the next is there")
    typed.type("\x04")
    assert typed.ended() == 0
    assert "1 record, " in typed.shown


def test_what_was_read_before_an_interrupt_is_appended(path: Path) -> None:
    Queue(path).close()
    with subprocess.Popen([*COMMAND, "append", str(path)], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as adding:
        assert adding.stdin is not None
        assert adding.stderr is not None
        adding.stdin.write(b"whole\n" * 100_000 + b"half")
        adding.stdin.flush()
        until(lambda: len(payloads(path)) == 100_000, "all lines are appended")
        adding.send_signal(signal.SIGINT)
        told = adding.stderr.read().decode()
        assert adding.wait(20) == 130
    assert told.startswith("100,000 records")
    assert "the last 4 bytes" in told
    assert payloads(path) == [b"whole"] * 100_000


@pytest.mark.parametrize("rest", [b"", b"half"])
def test_what_was_just_read_when_an_interrupt_comes_is_not_lost(rest: bytes) -> None:
    """It is taken from the pipe: nobody else will ever have it."""

    class Late(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            found = super().read1(size)
            signal.raise_signal(signal.SIGINT)
            return found

    source = Records(Late(b"first\nsecond\n" + rest), length_prefixed=False)
    assert [line for some in source for line in some] == [b"first", b"second"]
    assert (source.interrupted, source.left_out_bytes) == (True, len(rest))


def test_an_interrupt_while_records_are_appended_waits_for_that() -> None:
    lines = [b"%010d" % i for i in range(100_000)]
    source, got = Records(io.BytesIO(b"\n".join(lines)), length_prefixed=False), list[bytes]()
    for some in source:
        signal.raise_signal(signal.SIGINT)
        got += some
    assert source.interrupted
    assert 0 < len(got) < len(lines)
    assert got == lines[: len(got)]


def test_what_is_in_the_log_and_was_not_synced_is_counted(
    path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(log: Log, timeout_s: float | None = None) -> int:
        raise StorageFailed(log.path, errno.EMFILE)

    Queue(path).close()
    with monkeypatch.context() as patch:
        patch.setattr(Log, "sync_to", refused)
        told = run("append", path, "--durable", input=b"one\ntwo\n")
    assert told.exit_code == 1
    assert "2 records" in told.stderr
    assert "do not append it again" in told.stderr
    assert "record 3 of the input and what follows was not appended" in told.stderr
    assert payloads(path) == [b"one", b"two"]
