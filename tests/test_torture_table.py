"""The table that `make torture` ends with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests import torture_table
from tests.channel_crash import test_kill as channel_kill
from tests.journal_crash import test_kill as journal_kill
from tests.power import test_power as power
from tests.power.campaign import main as cut_power
from tests.queue import test_kill as queue_kill
from tests.queue.crash import Yard
from tests.torture_table import CAMPAIGNS, Row, again, as_test, main, table


def test_rows_of_a_use_and_fault_are_one_line() -> None:
    drawn = table([Row("queue", "kill", 5, 0, 1000), Row("topic", "EIO", 1, 1, 7), Row("queue", "kill", 7, 1, 500)])
    assert [line.split() for line in drawn.splitlines()] == [
        ["use", "fault", "cases", "failures", "records"],
        ["queue", "kill", "12", "1", "1,500"],
        ["topic", "EIO", "1", "1", "7"],
    ]


def test_every_campaign_takes_the_same_arguments(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One state of one workload, from the command to the table; a campaign that fails does not keep the others from running."""
    assert all(Path(f"{module.replace('.', '/')}.py").exists() for module in CAMPAIGNS)
    monkeypatch.setattr(torture_table, "CAMPAIGNS", {"tests.no_such_campaign": 1, "tests.kit.campaign": 1})
    assert main(["--kills", "1", "--seed", "3", "--use", "sink", "--ops", "batch"]) == 1
    told = capfd.readouterr().out
    assert "failed, see above: tests.no_such_campaign\n" in told
    assert "sink" in told.splitlines()[-3]


def test_hostile_files_are_lines_of_the_log_that_they_are_of(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One of each format, and three of compressed channels, which are channels."""
    monkeypatch.setattr(torture_table, "CAMPAIGNS", {"tests.fuzz.campaign": 7})
    assert main([]) == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines() if "  hostile files  " in line]
    assert [(line[0], line[3], line[4]) for line in lines] == [
        (use, count, "0") for use, count in (("queue", "1"), ("channel", "4"), ("journal", "1"), ("topic", "1"))
    ]


def test_what_could_not_be_run_is_told_below_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(module: str, arguments: list[str], rows: Path) -> int:
        monkeypatch.setenv("PENSTOCK_TORTURE_TABLE", str(rows))
        monkeypatch.setattr("sys.argv", [module, *arguments])
        monkeypatch.setattr("tests.power.campaign.missing", lambda kind: f"there is no mkfs.{kind}")
        return cut_power()

    monkeypatch.setattr(torture_table, "CAMPAIGNS", {"tests.power.campaign": 1})
    monkeypatch.setattr(torture_table, "run", run)
    assert main([]) == 0
    wanted = [f"not run: power cuts on {kind}: there is no mkfs.{kind}" for kind in ("ext4", "xfs")]
    assert capsys.readouterr().out.splitlines()[-2:] == wanted


def test_the_command_that_runs_a_campaign_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KERNEL", "reference")
    monkeypatch.delenv("PENSTOCK_PORTABLE", raising=False)
    told = again("tests.torture", kills=7, seed=1, stop_s=0.5, use=None)
    assert told == "again with: PENSTOCK_KERNEL=reference python -m tests.torture --kills 7 --seed 1 --stop-s 0.5"
    told = as_test("tests/test_some.py", seed=1, kills=7)
    assert told == "again with: PENSTOCK_KERNEL=reference PENSTOCK_SEED=1 PENSTOCK_KILLS=7 pytest tests/test_some.py"


@pytest.mark.parametrize(
    ("where", "call", "command"),
    [
        (
            queue_kill.torture,
            lambda top: queue_kill.test_campaign_of_random_kills(top),
            "python -m tests.torture --kills [0-9]+ --seed 7 --stop-s 0$",
        ),
        (
            power,
            lambda top: power.test_what_was_promised_survives_a_power_cut(),
            "python -m tests.power.campaign --snapshots 2 --seed 1 --file-systems ext4$",
        ),
        (
            channel_kill,
            lambda top: channel_kill.test_what_was_acknowledged_holds_however_often_the_process_is_killed(
                Yard(top), None
            ),
            "PENSTOCK_SEED=[0-9]+ PENSTOCK_KILLS=[0-9]+ pytest tests/channel_crash/test_kill.py$",
        ),
        (
            journal_kill,
            lambda top: journal_kill.test_the_same_on_a_disk(top),
            f"PENSTOCK_SEED=[0-9]+ PENSTOCK_KILLS={journal_kill.KILLS} pytest tests/journal_crash/test_kill.py$",
        ),
    ],
    ids=["queue", "power", "channel", "journal"],
)
def test_a_test_that_fails_tells_the_command_that_runs_it_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: ModuleType, call: Callable[[Path], None], command: str
) -> None:
    monkeypatch.setenv("PENSTOCK_KERNEL", "reference")
    monkeypatch.delenv("PENSTOCK_PORTABLE", raising=False)
    monkeypatch.setenv("PENSTOCK_SEED", "7")
    monkeypatch.setattr(where, "campaign", lambda *_, **__: SimpleNamespace(failures=["this"]))
    with pytest.raises(AssertionError, match=rf"(?m)this\n *again with: PENSTOCK_KERNEL=reference {command}"):
        call(tmp_path)


@pytest.mark.parametrize(
    ("given", "kills"), [([], "250"), (["--part", "10"], "25"), (["--part", "1"], "3"), (["--kills", "7"], "7")]
)
def test_a_part_of_it(monkeypatch: pytest.MonkeyPatch, given: list[str], kills: str) -> None:
    ran: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(torture_table, "CAMPAIGNS", {"tests.one": 250})
    monkeypatch.setattr(torture_table, "run", lambda module, arguments, _: ran.append((module, arguments)))
    assert main(given) == 0
    assert ran == [("tests.one", ["--kills", kills])]
