"""The table that `make torture` ends with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import torture_table
from tests.power.campaign import main as power
from tests.torture_table import CAMPAIGNS, Row, again, main, table


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


def test_what_could_not_be_run_is_told_below_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(module: str, arguments: list[str], rows: Path) -> int:
        monkeypatch.setenv("PENSTOCK_TORTURE_TABLE", str(rows))
        monkeypatch.setattr("sys.argv", [module, *arguments])
        monkeypatch.setattr("tests.power.campaign.missing", lambda kind: f"there is no mkfs.{kind}")
        return power()

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


@pytest.mark.parametrize(
    ("given", "kills"), [([], "250"), (["--part", "10"], "25"), (["--part", "1"], "3"), (["--kills", "7"], "7")]
)
def test_a_part_of_it(monkeypatch: pytest.MonkeyPatch, given: list[str], kills: str) -> None:
    ran: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(torture_table, "CAMPAIGNS", {"tests.one": 250})
    monkeypatch.setattr(torture_table, "run", lambda module, arguments, _: ran.append((module, arguments)))
    assert main(given) == 0
    assert ran == [("tests.one", ["--kills", kills])]
