"""What the long run (`make soak`) calls growth, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Topics
from tests import soak
from tests.soak import (
    LEAST_DISK_BYTES,
    USES,
    Broken,
    Order,
    Result,
    Series,
    check_group,
    judge,
    judge_files,
    payload,
    plot,
    report,
)
from tests.torture_table import forced

FLAT = {"appends": 1000.0, "memory": 20e6, "descriptors": 20.0, "maps": 40.0, "p50": 5.0, "p99": 50.0}


def result(**growing: tuple[float, float]) -> Result:
    """Of a run whose values go from one to another, in steps."""
    steps = [i / 59 for i in range(60)]
    samples = [{**FLAT, **{what: low + step * (high - low) for what, (low, high) in growing.items()}} for step in steps]
    disk = [{"bytes": sample.pop("bytes", 1e6)} for sample in samples]
    return Result({use: Series(samples) for use in USES}, Series(disk))


@pytest.mark.parametrize(
    ("what", "low", "high"),
    [
        ("memory", 20e6, 60e6),
        ("descriptors", 20, 40),
        ("maps", 40, 90),
        ("p50", 5, 300),
        ("p50", 100, 1500),
        ("p99", 50, 8_000),
        ("p99", 500, 20_000),
        ("bytes", LEAST_DISK_BYTES, 4 * LEAST_DISK_BYTES),
    ],
)
def test_growth_is_named(what: str, low: float, high: float) -> None:
    grown = result(**{what: (low, high)})
    judge(grown)
    assert len(grown.failures) == (1 if what == "bytes" else len(USES)), grown.failures


def test_what_is_flat_is_fine() -> None:
    flat = result(memory=(20e6, 21e6), descriptors=(20, 21), maps=(40, 44), p50=(5, 60), p99=(50, 2_000))
    judge(flat)
    assert flat.failures == []
    assert flat.records == 60 * 1000 * len(USES)
    assert "20.3 -> 20.9" in report(flat)


def test_too_few_samples_say_nothing() -> None:
    short = Result({"queue": Series([FLAT] * 3)}, Series())
    judge(short)
    assert "too few" in short.failures[0]


def test_a_plot_has_its_lowest_and_its_highest() -> None:
    assert plot([1, 2, 3]) == "▁▄█"
    assert plot([5, 5]) == "▁▁"
    assert len(plot(list(range(600)))) == 60


def test_records_out_of_order_are_noticed() -> None:
    order = Order(7)
    order.take(payload(7))
    order.take(payload(8))
    with pytest.raises(Broken, match="record 10 where 9 should be"):
        order.take(payload(10))
    with pytest.raises(Broken, match="not what was appended"):
        order.take(payload(9)[:-1] + b"y")
    order.end(9)
    with pytest.raises(Broken, match="no record 9, and there are 10"):
        order.end(10)


def test_so_is_what_a_group_is_not_given(tmp_path: Path) -> None:
    """It begins where the group has committed, whoever did."""
    with Topics(tmp_path) as logs:
        t = logs.topic("t", 1)
        for i in range(5):
            t.publish(payload(i), partition=0)
        t.flush()
        given = t.read(0, 0, 10)
        check_group(t, given)
        with pytest.raises(Broken, match="record 1 where 0 should be"):
            check_group(t, given[1:])
        with t.group("group") as member:
            member.poll_many(2)
            member.commit()
        check_group(t, given[2:])
        with pytest.raises(Broken, match="record 3 where 4 should be"):
            check_group(t, [given[2], given[3], given[3]])


@pytest.mark.parametrize(
    ("lost", "what"),
    [
        ("channel/segment.0.z", "channel: nothing was ever compressed"),
        ("queue/20261119-0002.data", "queue: never rolled"),
        ("", "journal: nothing was ever removed, of 3 files"),
    ],
)
def test_what_never_happened_is_named(lost: str, what: str) -> None:
    seen = {f"queue/20261119-000{i}.data" for i in range(3)} | {f"journal/{i}.journal" for i in range(3)}
    seen |= (
        {f"channel/segment.{i}" for i in range(3)}
        | {"channel/segment.0.z"}
        | {f"topics/t/partition_0_segment_{i}.log" for i in range(3)}
    )
    ran = Result({}, Series(), seen=seen - {lost})
    judge_files(ran, {"journal/0.journal", "journal/1.journal", "journal/2.journal"} if not lost else set())
    assert len(ran.failures) == 1
    assert what in ran.failures[0]


def test_a_run_that_fails_leaves_its_directory_and_says_how_it_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["soak", "--minutes", "2", "--seed", "7", "--base", str(tmp_path)])
    for failures, code in (["this"], 1), ([], 0):
        monkeypatch.setattr(soak, "soak", lambda *_, failures=failures, **__: Result({}, Series(), failures=failures))
        assert soak.main() == code
        assert tmp_path.exists() == bool(failures)
        told = f"{tmp_path} is left; again with: {forced()}python -m tests.soak --minutes 2 --seed 7"
        assert (told in capsys.readouterr().out) == bool(failures)


def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All uses, and readers that die, for as long as it takes to see that each goes on. How long an append takes says nothing here:
    other tests run beside it."""
    monkeypatch.setattr(soak, "TELL_S", 3.0)
    lines: list[str] = []
    ran = soak.soak(tmp_path, 10.0, tell=lines.append)
    assert [failure for failure in ran.failures if " us" not in failure] == []
    assert all(sum(sample["appends"] for sample in series.samples) > 500 for series in ran.uses.values())
    assert ran.killed
    assert ran.read > ran.killed
    assert "appends" in lines[-1]
    assert "topic" in lines[-1]


def test_a_reader_that_ends_by_itself_is_no_reader_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "queue").touch()  # no log, so that it raises at once
    ran = Result({}, Series())
    reader = soak._Reader("queue", tmp_path, 60.0)
    reader.process.wait(60)
    assert reader.is_due
    soak._count(ran, reader)
    assert ran.killed == 0
    assert "queue: a reader ended by itself\nTraceback" in ran.failures[0]


def test_nor_is_one_that_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "STALL_S", 0.0)
    ran = Result({}, Series())
    reader = soak._Reader("queue", tmp_path, 60.0)
    assert reader.is_due
    soak._count(ran, reader)
    assert ran.killed == 0
    assert ran.failures == ["queue: a reader has read nothing in 0 s"]
