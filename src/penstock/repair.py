"""Repair: what `verify` finds is put right, as far as what is left tells. `plan` says what would be done, `apply` does it.

Records that cannot be read stay where they are and are listed as lost, so that readers step over them; every later record keeps its
sequence. What is changed is copied to `*.broken` first. Nobody may have the log open meanwhile. After a crash at any moment it
can be run again; when nothing is left to do, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec

from penstock.errors import LogBusy, PenstockError
from penstock.inspect import Part, Segment, format_of
from penstock.storage import files
from penstock.storage.control import Active, Control, Mark
from penstock.storage.damage import Place
from penstock.storage.holder import Holder
from penstock.storage.losses import Listed, LossList
from penstock.storage.mending import Mending
from penstock.storage.report import OnProgress, Recovery
from penstock.storage.segment import ReadSegment
from penstock.verify import Checked, Finding, Looked, check, look

Given = ParamSpec("Given")
_ROUNDS: Final = 5  # what was hidden behind one damage is found when that is mended
_REOPENED: Final = ("control", "manifest", "tail")


@dataclass(frozen=True, slots=True)
class Step:
    """Something to be done about a finding."""

    finding: Finding

    def __str__(self) -> str:
        return f"{self.finding.file}: {self.finding.repair}"


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What would be done, and what repair can do nothing about."""

    path: str
    steps: tuple[Step, ...]
    beyond: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was done, where copies of what was changed are, and what is left."""

    path: str
    steps: tuple[Step, ...]
    copies: tuple[str, ...]
    torn: tuple[str, ...]  # what was cut off behind the last record, and where a copy of that is
    left: tuple[Finding, ...]
    failed: tuple[str, ...]  # what could not be done, and why

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Case(NamedTuple):
    """A log, what is wrong with it, and where its pages stood before that was looked for."""

    looked: Looked
    checked: tuple[Checked, ...]
    pages: object

    @property
    def findings(self) -> list[Finding]:
        return [*self.looked.findings, *(finding for one in self.checked for finding in one.findings)]

    @property
    def steps(self) -> list[Step]:
        if any(finding.kind == "log" for finding in self.findings):
            return []  # a new log in place of one that is not there any more would only hide that
        return [Step(finding) for finding in self.findings if finding.mendable]


def plan(path: str | Path, *, progress: OnProgress | None = None) -> RepairPlan:
    """What `apply` would do first. Nothing is changed. What one damage hides is found when that is mended."""
    cases = _cases(path, progress)
    return RepairPlan(
        path=str(path),
        steps=tuple(step for case in cases for step in case.steps),
        beyond=tuple(f for case in cases for f in case.findings if Step(f) not in case.steps),
    )


def apply(path: str | Path, *, progress: OnProgress | None = None) -> RepairReport:
    """Put right what can be. Raises LogBusy, with nothing of that log changed, while another process has it open."""
    done: list[Step] = []
    copies: list[str] = []
    torn: list[str] = []
    failed: dict[str, None] = {}
    for _ in range(_ROUNDS):
        cases = _cases(path, progress)
        wanted = [case for case in cases if any(step not in done for step in case.steps)]
        if not wanted:
            break
        for case in wanted:
            with _alone(case.looked.part):
                if _pages(case.looked.part) != case.pages:
                    continue  # somebody was here since: look again
                mending = _Mender(case)
                mending.run()
            done += [step for step in case.steps if step not in done]
            copies += mending.copies
            torn += mending.torn
            failed.update(dict.fromkeys(mending.failed))
    left = [finding for case in cases for finding in case.findings]
    return RepairReport(str(path), tuple(done), tuple(copies), tuple(torn), tuple(left), tuple(failed))


def _cases(path: str | Path, progress: OnProgress | None) -> list[_Case]:
    pages: dict[Part, object] = {}
    found = look(path, before=lambda part: pages.update({part: _pages(part)}))
    told = Recovery()
    told._tell(progress, sum(segment.end for log in found for segment in log.segments))
    return [
        _Case(log, tuple(check(s, deep=True, rests=log.rests, told=told) for s in log.segments), pages[log.part])
        for log in found
    ]


# ---- nobody else may be there ----


def _pages(part: Part) -> tuple[Active, int, Mark | None] | None:
    """Where a log ends, as its page says without being asked to wait; None where it says nothing."""
    try:
        control = Control(part.own / ".lock", format_of(part.format, part.partition), read_only=True)
    except FileNotFoundError:
        return None
    except OSError:  # it may say something, and cannot be asked
        raise
    except PenstockError:
        return None
    try:
        return control.active(), control.generation, control.clean
    finally:
        control.close()


@contextmanager
def _alone(part: Part) -> Iterator[None]:
    with ExitStack() as stack:
        if part.format in ("channel", "journal"):
            stack.callback(Holder(Path(part.path), part.format, readable=False).close)
        for page in _locks(part):
            fd = stack.enter_context(files.opened_to_lock(page, make=True))
            if not files.lock(fd, shared=False, wait=False):
                who = ", ".join(map(str, files.lock_holders(fd))) or "unknown"
                raise LogBusy(
                    f"{part.path}: process {who} has this {part.format} open; close it there first, then repair it"
                )
        yield


def _locks(part: Part) -> list[Path]:
    """The control pages that are locked by whoever has a log open; a topic is one thing, since its settings are."""
    top = Path(part.path)
    if part.format != "topic":
        return [top / ".lock"]
    return sorted(place / ".lock" for place in top.glob(".partition_*"))


# ---- doing it ----


class _Mender:
    """Does the steps of one case, in an order in which each may count on those before it."""

    def __init__(self, case: _Case) -> None:
        self._case = case
        self._part = case.looked.part
        self._fmt = format_of(self._part.format, self._part.partition)
        self._at: dict[Path, Mending] = {}
        self.failed: list[str] = []

    @property
    def copies(self) -> list[str]:
        return [copy for mending in self._at.values() for copy in mending.copies]

    @property
    def torn(self) -> list[str]:
        return [cut for mending in self._at.values() for cut in mending.torn]

    def run(self) -> None:
        looked = self._case.looked
        if looked.missing is not None:
            place, info = looked.missing
            seg = ReadSegment(place, self._fmt, info.id, info.base, listed=True)
            self._try(
                self._mending(self._part.own if place == Path(self._part.path) else place).empty_file, seg, info.begin
            )
        flaws = [flaw for flaw in looked.flaws if flaw.known]
        if any(flaw.kind == "metadata" for flaw in flaws):
            self._try(self._mending(self._part.own).settings)
        for flaw in flaws:
            if flaw.kind == "losses":
                self._try(self._mending(flaw.file.parent).forget_losses, flaw.file)
        for segment, checked in zip(looked.segments, self._case.checked, strict=True):
            self._try(self._segment, segment, checked)
        self._readers()
        for place in {Path(f.file).parent for f in looked.findings if f.kind in ("control", "manifest") and f.mendable}:
            kept = [flaw.file for flaw in flaws if flaw.kind in _REOPENED and flaw.file.parent == place]
            self._try(self._mending(place).reopen, kept)
        if any(f.kind == "tail" for f in looked.findings) and not any(f.kind in _REOPENED[:2] for f in looked.findings):
            self._try(self._mending(self._part.own).reopen, [])

    def _mending(self, own: Path) -> Mending:
        """Of the log that keeps its own there: a journal has one for each session."""
        if own not in self._at:
            top = own if self._part.format == "journal" else Path(self._part.path)
            self._at[own] = Mending(top, self._fmt, own)
        return self._at[own]

    def _try(self, mend: Callable[Given, None], *given: Given.args, **named: Given.kwargs) -> None:
        """One that cannot be done does not keep the others from it; storage that fails does."""
        try:
            mend(*given, **named)
        except OSError:
            raise
        except PenstockError as error:
            self.failed.append(str(error))

    def _segment(self, segment: Segment, checked: Checked) -> None:
        kinds = {finding.kind for finding in checked.findings if finding.mendable}
        own = Path(segment.directory) if self._part.format == "journal" else self._part.own
        mending, end = self._mending(own), Place(segment.end, segment.next)
        seg = segment.read()
        missing = not any(path.exists() for path in (seg.paths.data, seg.paths.packed) if path is not None)
        if "record" in kinds and missing:
            mending.empty_file(seg, segment.begin or 0)
        if "header" in kinds:
            mending.header(seg, segment.begin or 0, segment.end)
        if "stream" in kinds:
            mending.inflate(seg, segment.end)
        if kinds & {"companion", "header"}:
            seg = segment.read()
        if "companion" in kinds:
            mending.companion(seg, end, checked.entries)
        listed = LossList(own)
        if checked.holes:
            listed.add(_listed(segment, checked))
        if "index" in kinds:
            mending.index(segment.read(), end, listed.all())

    def _readers(self) -> None:
        looked, mending = self._case.looked, self._mending(self._part.own)
        names = [flaw.name for flaw in looked.flaws if flaw.kind == "cursor"]
        first = looked.segments[0] if looked.segments else None
        if self._part.format != "channel":
            for name in names:
                self._try(mending.cursor, name, first.base if first else 0, looked.end)
        elif names or any(flaw.kind == "offset" for flaw in looked.flaws):
            begin = (first.begin or 0) if first else 0
            self._try(mending.receivers, names, begin, looked.end_offset)


def _listed(segment: Segment, checked: Checked) -> Sequence[Listed]:
    now, name = files.now_us(), segment.name
    return [Listed(name, *hole.loss[:2], hole.position, hole.end, hole.loss.reason, now) for hole in checked.holes]
