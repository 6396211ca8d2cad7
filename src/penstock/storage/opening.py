"""Opening a log when no other process has it open: where it ends, what a crash left, and making the control page valid.

`recovery.Opening` finds the end and cuts a torn tail; here is decided what may be believed, and what becomes of the rest of
the directory. Called by `Log` under the exclusive lock on the control page (`survey`: without it, and changing nothing).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from penstock.errors import LogNotFound, NotALog
from penstock.storage import files, last_time
from penstock.storage.control import Active, Control, Dirty, Mark
from penstock.storage.cursor import Cursors
from penstock.storage.damage import Place
from penstock.storage.directory import Directory
from penstock.storage.listing import companion_base
from penstock.storage.losses import LossList
from penstock.storage.manifest import Manifest, SegmentInfo
from penstock.storage.recovery import Opening, Tail, report_loss
from penstock.storage.report import OnProgress, Recovery
from penstock.storage.segment import max_records, next_id
from penstock.storage.span import finish_appends
from penstock.storage.walking import walk


def recover(
    directory: Directory,
    control: Control,
    manifest: Manifest,
    cursors: Cursors,
    *,
    verify: OnProgress | None,
    written: int,
) -> Recovery:
    """Find the end of the log, mend what a crash left, and make the control page valid; with `verify`, check all of it."""
    same = control.same_boot and _agrees(control) and _fits(directory, control)
    directory.remove_temporaries()
    listed = load_manifest(directory, manifest, control.generation, believe_rolled=same)
    losses = LossList(directory.own)
    opening = Opening(
        directory.path,
        directory.fmt,
        manifest,
        directory.interval,
        mend=True,
        losses=losses,
        written=written,
        on_failed_sync=control.note_failed_to_open,
    )
    report = opening.report
    report._tell(verify, directory.used_bytes() if verify else 0)
    same = not _drop_leftovers(directory, control, manifest, opening) and same  # on a new boot too
    had_data = bool(directory.segments())
    if had_data and not listed:
        report.rebuilt.append("manifest")
    durable, failed = control.durable, control.failed_to_open or (same and control.poison != 0)
    known = _known(directory, control, manifest, same=same)
    report.how = known.how if had_data else "created"
    tail = opening.find_tail(known.floor, exact=known.exact, verify=verify is not None or known.how == "same boot")
    if tail is not None and tail.segment in opening.finished_only:
        _list_finished(directory, manifest, tail, opening.begins[tail.segment])
        tail = None
    if tail is None:
        tail = _first_segment(directory, manifest)
    mark = durable if same and durable else Mark(tail.segment, tail.end, tail.next)
    if failed and not same:
        mark = known.floor or _first_unsealed(directory, manifest, tail)
    if failed and mark.next < tail.next:
        tail = _move_undurable(directory, manifest, tail, mark, control.generation + 1, report)
        mark = Mark(tail.segment, tail.end, tail.next)
    if mark.next < tail.next and not directory.fmt.SPEC.zero_ends:
        # While the page is made anew it is not believed. Should we die over that, only a mark tells zeros from records.
        _sync_unsealed(directory, manifest, opening)
        mark = Mark(tail.segment, tail.end, tail.next)
        control.mark_durable(mark)
    if verify:
        check(directory, manifest.ordered(), report)
    losses.cut(Place(tail.end, tail.next), directory.paths(tail.segment).name)  # before anything can be appended
    manifest.rewrite(control.generation + 1)
    control.next_generation()
    control.initialise(*tail, mark)
    files.sync(control.fd)
    _set_back(directory, cursors, tail, report)
    return report


def load_manifest(directory: Directory, manifest: Manifest, generation: int, *, believe_rolled: bool) -> bool:
    """Read the manifest; False when it is missing or damaged. What damage hides is told by the segments that there are."""
    whole = manifest.load(generation, believe_rolled=believe_rolled)
    if manifest.unknown_edits:
        manifest.forget_removed(directory.segments())
    return whole


def join_manifest(directory: Directory, manifest: Manifest, control: Control) -> bool:
    """Read it beside others, whose page says which segment is active; whether what can be read of it leads there."""
    now = control.active()  # first: a roll in between is then listed
    whole = load_manifest(directory, manifest, control.generation, believe_rolled=True)
    if whole and not manifest.unknown_edits:
        return True
    return manifest.is_open and manifest.leads_to(now.segment, now.base)


class _Known(NamedTuple):
    """What the control page tells of where the log ends."""

    floor: Mark | None  # not before this
    exact: bool  # and not behind it
    how: str


def _known(directory: Directory, control: Control, manifest: Manifest, *, same: bool) -> _Known:
    """In its own boot the page is right, once what was under way when its writers died is finished; else its marks are."""
    clean = control.clean
    if same:
        finish_appends(directory, control, manifest)
        now = control.active()
        floor = Mark(now.segment, now.end, now.next)
        return _Known(floor, exact=True, how="clean" if clean == floor else "same boot")
    last = control.last_mark
    exact = clean is not None and clean == last and _ends_at(directory, clean)
    return _Known(last, exact, how="clean" if exact else "new boot")


def _list_finished(directory: Directory, manifest: Manifest, tail: Tail, begin: int) -> None:
    """List the last segment as finished: what was compressed cannot be cut. Its data is synced if that of all before it is."""
    sealed = all(s.sealed for s in manifest.segments.values())
    count = tail.next - tail.base
    us = _own_last_us(directory, tail)
    manifest.segments[tail.segment] = SegmentInfo(tail.segment, tail.base, count, tail.end, 0, us, sealed, begin)


def _own_last_us(directory: Directory, tail: Tail) -> int:
    """Not the log's, which may be of an earlier segment."""
    return last_time.of_last(directory.paths(tail.segment), directory.fmt, tail.base, tail.next - tail.base)


def _set_back(directory: Directory, cursors: Cursors, tail: Tail, report: Recovery) -> None:
    """Readers stand at the end at most."""
    for name, sequence in cursors.all().items() if directory.fmt.CURSORS_ARE_SEQUENCES else ():
        if sequence > tail.next:
            cursors.store(name, tail.next)
            report.cursors_set_back[name] = sequence


def survey(
    directory: Directory,
    control: Control | None,
    manifest: Manifest,
    *,
    verify: OnProgress | None,
    written: int,
    still: bool = False,
    may_be_empty: bool = False,
) -> tuple[Tail, Recovery]:
    """Find the end of a log that nobody writes, without changing anything. Its page is believed in its own boot too if it is
    `still`: whoever wrote it is gone."""
    same = still and control is not None and control.same_boot and _agrees(control) and _is_beyond_durable(control)
    load_manifest(directory, manifest, 0, believe_rolled=same)
    opening = Opening(
        directory.path,
        directory.fmt,
        manifest,
        directory.interval,
        mend=False,
        losses=LossList(directory.own),
        written=written,
    )
    opening.report._tell(verify, directory.used_bytes() if verify else 0)
    clean = control.clean if control else None
    exact = same or (clean is not None and _ends_at(directory, clean))
    floor = clean or (control.durable if control else None)
    if same and control is not None:
        now = control.active()
        floor = Mark(now.segment, now.end, now.next)
    opening.report.how = "same boot" if same and not clean else "clean" if exact else "new boot"
    tail = opening.find_tail(floor, exact=exact, verify=verify is not None)
    behind = directory.segments()[-1:]  # found to be no part of the log: it ends with the finished ones
    if tail is None and (may_be_empty or (manifest.segments and behind > [manifest.ordered()[-1].id])):
        tail = _before_first_segment(directory, manifest)
    if tail is None and manifest.segments:
        raise NotALog(
            f"{directory.path}: the file behind the finished ones is missing; restore it from a copy, or open the log for writing, "
            "which begins a new one"
        )
    if tail is None:
        raise LogNotFound(f"{directory.path}: no data files here; open the log for writing to create one")
    if verify:
        check(directory, manifest.ordered(), opening.report)
    return tail, opening.report


def check(
    directory: Directory,
    segments: list[SegmentInfo],
    report: Recovery,
    is_gone: Callable[[SegmentInfo], bool] = lambda info: False,
) -> None:
    """Verify every record of these segments, and report what is damaged and not listed as lost. Of one whose file is missing it is asked
    whether it was removed meanwhile."""
    losses = LossList(directory.own)
    for info in segments:
        seg = directory.read(info.id, info.base, listed=True)
        if not len(seg.data) and is_gone(info):
            continue
        if seg.header_error and len(seg.data):
            report.damage.append(seg.header_error)
        if seg.header.begin != info.begin and not seg.header_error:
            report.damage.append(f"{seg.paths.data}: byte 4: begins at {seg.header.begin}, it should be {info.begin}")
        found = walk(seg, Place(info.end, info.next), directory.interval, report, listed=losses.known())
        for position, loss, _ in found.losses:
            report_loss(report, losses, seg, position, loss)


def is_believable(directory: Directory, control: Control) -> bool:
    """Whether a page of this boot does not contradict itself, nor the companion of the segment that it says is written."""
    now = control.active()
    base = companion_base(directory.paths(now.segment))
    return _agrees(control) and (base is None or base == now.base)


def _agrees(control: Control) -> bool:
    """A page that was closed clean says twice where the log ends, once with a checksum: a flipped bit is not believed. Nor is one that
    was not, and says what cannot be."""
    clean, now = control.clean, control.active()
    if clean is None:
        return control.is_possible
    return clean == Mark(now.segment, now.end, now.next) and control.dirty is None


def _fits(directory: Directory, control: Control) -> bool:
    """Whether a page that was not closed clean can be right. Where files grow, the records of the last file lead to the end
    that it says, and are as many. If they do not, one of the two is damaged: the page, if they lead to its durable mark,
    which has a checksum."""
    now, dirty, durable = control.active(), control.dirty, control.durable
    if control.clean is not None:
        return True
    if dirty is not None and not _can_be_under_way(directory, now, dirty):
        return False
    if not directory.fmt.GROWS:
        return True
    if not _is_beyond_durable(control) or not directory.paths(now.segment).data.exists():
        return False
    seg = directory.read(now.segment, now.base)
    ends = [Place(now.end, now.next)]
    if dirty is not None and dirty.next == now.next:
        ends.append(Place(dirty.end, dirty.next))  # it died between the two stores
    led = [seg.leads_to(end) for end in ends]
    if True in led:
        return True
    if durable is not None and durable.segment == now.segment and seg.leads_to(Place(durable.end, durable.next)):
        return False
    return None in led and now.base <= now.next <= now.base + (now.end - seg.start) // directory.fmt.SPEC.overhead


def _can_be_under_way(directory: Directory, now: Active, dirty: Dirty) -> bool:
    """Whether an append may have been announced, which goes on from the end and fits the file."""
    if directory.fmt.GROWS:
        return dirty.end >= now.end and dirty.next >= now.next
    room = directory.file_size
    with suppress(FileNotFoundError), files.opened(directory.paths(now.segment).data) as fd:
        room = max(room, files.size(fd))
    return now.end <= dirty.end <= room and now.next <= dirty.next <= now.base + max_records(directory.fmt, room)


def _is_beyond_durable(control: Control) -> bool:
    """Whether a page ends where it says, with a checksum, that it must at least."""
    durable, now = control.durable, control.active()
    return durable is None or (now.segment, now.end) >= (durable.segment, durable.end)


def _ends_at(directory: Directory, mark: Mark) -> bool:
    """Whether nothing was appended after a clean close: a page that says so may be older than the data."""
    if any(s > mark.segment for s in directory.segments()):
        return False
    path = directory.paths(mark.segment).data
    if not path.exists():
        return True
    with files.opened(path) as fd:
        return files.size(fd) == mark.end if directory.fmt.GROWS else not any(files.read(fd, mark.end, 4))


def _first_segment(directory: Directory, manifest: Manifest) -> Tail:
    """A new segment behind all that are finished."""
    new = _before_first_segment(directory, manifest)
    at = directory.make(new.segment, new.base, _begin_after_finished(directory, manifest))
    directory.sync(new.segment)  # the durable mark will stand in it
    return new._replace(end=at.position, next=at.sequence)


def _before_first_segment(directory: Directory, manifest: Manifest) -> Tail:
    """Where such a segment will be."""
    fmt, last, now = directory.fmt, _last_finished(manifest), files.now_us()
    next_, new = (last.next, next_id(directory.path, fmt, last.id, now)) if last else (0, fmt.first_id(now))
    if not manifest.segments:
        next_, new = max(next_, directory.first.sequence), max(new, directory.first.segment)
    return Tail(new, next_, fmt.HEADER_BYTES, next_, last_time.last_us(directory.path, fmt, manifest, new))


def _last_finished(manifest: Manifest) -> SegmentInfo | None:
    """The last segment before the one that is written, though it may be gone."""
    finished = manifest.ordered()
    return finished[-1] if finished else manifest.gone


def _begin_after_finished(directory: Directory, manifest: Manifest) -> int:
    """How many bytes of frames lie in all finished segments, with those that were retired."""
    last = _last_finished(manifest)
    return last.begin + last.end - directory.fmt.HEADER_BYTES if last and directory.fmt.SAYS_BEGIN else 0


def _first_unsealed(directory: Directory, manifest: Manifest, tail: Tail) -> Mark:
    """Before all that may not be on the disk of a log which no mark speaks of."""
    segment, base = next(((s.id, s.base) for s in manifest.ordered() if not s.sealed), (tail.segment, tail.base))
    return Mark(segment, directory.read(segment, base).start, base)


def _sync_unsealed(directory: Directory, manifest: Manifest, opening: Opening) -> None:
    """Put what may not be on the disk of the finished segments there; the last one's was just before."""
    for info in manifest.ordered():
        paths = directory.paths(info.id)
        if not info.sealed and paths.data.exists():
            with files.opened(paths.data) as fd:
                opening.sync(fd)
            paths.sync_names()
    files.sync_directory(directory.path)


def _move_undurable(
    directory: Directory, manifest: Manifest, tail: Tail, mark: Mark, generation: int, report: Recovery
) -> Tail:
    """After a failed sync the page cache cannot be trusted to reach the disk: write what it holds to new files."""
    last = tail.segment
    made: list[SegmentInfo] = []
    sources = [s for s in manifest.ordered() if s.id >= mark.segment]
    count, begin = tail.next - tail.base, directory.begin_of(tail.segment)
    us = _own_last_us(directory, tail)
    sources.append(SegmentInfo(tail.segment, tail.base, count, tail.end, 0, us, begin=begin))
    for source in sources:
        seg = directory.read(source.id, source.base)
        start, base = (mark.end, mark.next) if source.id == mark.segment else (seg.start, source.base)
        if source.next == base:
            continue
        last = next_id(directory.path, directory.fmt, last, files.now_us())
        begin = directory.begin_after(source.id, start)
        end = directory.copy(last, base, begin, seg, start, source.end, source.next)
        first_us = seg.times.us(base - source.base)
        made.append(SegmentInfo(last, base, source.next - base, end, first_us, source.last_us, begin=begin))
        report.moved_bytes += source.end - start
    for source in sources:
        manifest.segments.pop(source.id, None)
        if source.id == mark.segment:
            manifest.segments[source.id] = replace(source, count=mark.next - source.base, end=mark.end)
    for info in [*manifest.ordered(), *made]:
        manifest.segments[info.id] = replace(info, sealed=True)  # the durable mark speaks for the earlier ones
    manifest.rewrite(generation)  # from here on the copies are the log, whatever the control page still says
    for source in sources:
        if source.id != mark.segment:
            directory.delete(source.id)
    return _first_segment(directory, manifest)


def _drop_leftovers(directory: Directory, control: Control, manifest: Manifest, opening: Opening) -> bool:
    """Take away files that are no part of the log any more: retired ones, and those whose records were moved.

    True when a move was cut short after its copies were listed: then the control page still speaks of the old files.
    """
    finished, on_disk = manifest.ordered(), directory.segments()
    last = on_disk[-1] if on_disk else 0
    retired = list[int]()
    for segment_id in on_disk:
        base = directory.base_of(segment_id) if segment_id not in manifest.segments else None
        if manifest.is_gone(segment_id) or (base is not None and base < manifest.retired_next):
            retired.append(segment_id)
        elif base is not None and any(s.base <= base <= s.next and s.id > segment_id for s in finished):
            opening.set_aside(segment_id)
        elif manifest.retired_next and segment_id < min((s.id for s in finished), default=last):
            paths = directory.paths(segment_id)
            if not (paths.data.exists() or paths.index.exists() or paths.times.exists()):
                retired.append(segment_id)  # a compressed file is the last one of a segment that goes
    if retired:  # who said so may have died, or have failed, before that was on the disk
        if manifest.unknown_edits:
            manifest.sync()
        else:
            manifest.rewrite(control.generation)
    for segment_id in retired:
        directory.delete(segment_id)
    if control.span is not None:
        return False  # no move, but a batch over several segments that was listed and not yet published
    return bool(finished) and control.active().segment < finished[-1].id
