"""The last file cut short at every byte, or with zeros from there on, in this boot and in another.

What the control page knows to be there and is not, is damage: named, and exactly that is lost. What it does not know of was told
to nobody; of that whole batches are left, and nothing that was never appended.
"""

from __future__ import annotations

import pytest

from penstock import CorruptRecord, Journal
from penstock.testing.state import Boot
from tests.journal_crash.small import Part, Small, build
from tests.journal_crash.wreck import EVERY, Found, lay, one_in, recovered
from tests.queue.crash import NATIVE, Image, Yard


@pytest.fixture(scope="module")
def small(yard: Yard) -> Small:
    made = build(yard.keep())
    assert made.last == 2
    assert 20 < made.stale_at < made.parts[-1].end
    assert sum(part.kind == 0 and not part.body for part in made.parts if part.file == made.last) == 1
    return made


def cuts(small: Small, step: int = 1) -> range:
    """Every byte, or one in some; fewer where the kernel is slow."""
    return range(0, small.parts[-1].end + 1, one_in(step) if EVERY or NATIVE else 4 * step)


def whole(small: Small, cut: int) -> list[Part]:
    """The parts that are not touched by a cut."""
    return [part for part in small.parts if part.file < small.last or part.end <= cut]


def damaged(small: Small, found: Found, kept: list[Part], upto: int) -> None:
    """Exactly what is not kept, up to a byte of the last file, is lost, and its first is named."""
    lost = [part for part in small.parts if part not in kept and part.end <= upto]
    assert found.lost == {part.sequence for part in lost}
    if lost:
        error = found.error
        assert isinstance(error, CorruptRecord)
        assert error.path.endswith(f"recovery/0/{small.name}")
        assert (error.position, error.sequence) == (lost[0].start, lost[0].sequence)
    else:
        assert found.error is None


def cut_off(image: Image, small: Small, cut: int) -> Image:
    return image.changed(small.name, image[small.name][:cut])


def zeroed(image: Image, small: Small, cut: int) -> Image:
    content = image[small.name]
    return image.changed(small.name, content[:cut].ljust(len(content), b"\0"))


@pytest.mark.parametrize("state", ["crashed", "closed"])
@pytest.mark.parametrize("boot", ["same", "new"])
def test_what_the_page_knows_of_and_is_cut_off_is_damage(small: Small, yard: Yard, boot: Boot, state: str) -> None:
    """The durable mark, and that of a clean close, are as good in another boot."""
    image = getattr(small, state)
    for cut in cuts(small, 1 if state == "crashed" else 4):
        found = recovered(lay(cut_off(image, small, cut), yard.new(), boot))
        kept = whole(small, cut)
        small.agrees(found, kept)
        damaged(small, found, kept, 1 << 62)
        assert found.checked == 1


def test_beyond_what_an_older_page_knows_of_whole_batches_are_left(small: Small, yard: Yard) -> None:
    for cut in cuts(small):
        found = recovered(lay(cut_off(small.stale, small, cut), yard.new(), "new"))
        if cut < small.stale_at:
            kept = whole(small, cut)
            damaged(small, found, kept, small.stale_at)
        else:
            kept = [part for part in whole(small, cut) if part.file < small.last or part.batch_end <= cut]
            assert found.error is None
            assert found.losses == []
        small.agrees(found, kept)


@pytest.mark.parametrize("without", [[".lock"], [".lock", "manifest"]])
def test_without_a_page_whole_batches_are_left(small: Small, yard: Yard, without: list[str]) -> None:
    for cut in cuts(small, len(without) ** 2):
        found = recovered(lay(cut_off(small.crashed.without(*without), small, cut), yard.new(), "new"))
        kept = [part for part in whole(small, cut) if part.file < small.last or part.batch_end <= cut]
        assert found.error is None
        small.agrees(found, kept)


def test_without_its_companion_a_cut_file_loses_what_is_cut(small: Small, yard: Yard) -> None:
    """Then nothing tells where batches end."""
    image = small.stale.without(f"{small.name}.time")
    for cut in cuts(small, 3):
        if cut < small.stale_at:
            continue
        found = recovered(lay(cut_off(image, small, cut), yard.new(), "new"))
        kept = whole(small, cut)
        empty = next((p for p in kept if p.file == small.last and p.start >= small.stale_at and not p.body), None)
        if empty is not None and cut > empty.start:  # nothing tells it from zeros that were never written
            kept = [part for part in kept if part.file < small.last or part.end <= empty.start]
        assert found.error is None
        small.agrees(found, kept)


def test_zeros_where_records_were_are_not_taken_for_empty_ones(small: Small, yard: Yard) -> None:
    """A power cut may leave a file's length and not its content. An empty record's companion was synced: it is one."""
    for cut in cuts(small, 3):
        if cut < small.stale_at:
            continue
        found = recovered(lay(zeroed(small.stale, small, cut), yard.new(), "new"))
        content = small.stale[small.name][:cut].ljust(small.parts[-1].end, b"\0")
        kept = []
        for part in small.parts:
            if (
                part.file == small.last
                and content[part.start : part.end] != small.stale[small.name][part.start : part.end]
            ):
                break
            kept.append(part)
        kept = [
            p for p in kept if p.file < small.last or p.batch_end <= max(k.end for k in kept if k.file == small.last)
        ]
        assert found.error is None, cut
        small.agrees(found, kept)


@pytest.mark.parametrize("boot", ["same", "new"])
def test_zeros_where_the_page_knows_of_records_are_damage(small: Small, yard: Yard, boot: Boot) -> None:
    for cut in cuts(small, 3):
        found = recovered(lay(zeroed(small.crashed, small, cut), yard.new(), boot))
        content = small.crashed[small.name]
        hit = {
            part.sequence
            for part in small.parts
            if part.file == small.last
            and content[part.start : part.end] != content[:cut].ljust(len(content), b"\0")[part.start : part.end]
        }
        assert hit <= found.lost, cut
        assert found.lost <= {p.sequence for p in small.parts if p.file == small.last and p.end > cut}
        assert [p for p in found.payloads if p] == [
            body for part in small.parts if part.sequence not in found.lost for body, _ in small.wanted([part]) if body
        ]
        assert bool(found.error) == bool(hit)


def test_what_lies_beyond_the_published_end_is_not_taken(small: Small, yard: Yard) -> None:
    """Bytes of a batch that was not acknowledged when its process was killed: in this boot the page tells."""
    image = small.crashed
    more = image.changed(small.name, image[small.name] + b"\0\x03\0\0abc\0\x05\0\0ab")
    found = recovered(lay(more, yard.new(), "same"))
    small.agrees(found, small.parts)
    assert found.error is None


def test_a_file_that_was_made_and_not_yet_written_to(small: Small, yard: Yard) -> None:
    """By a roll that was cut short, before or after its first record was written."""
    for content in (b"", small.crashed[small.name][:7]):
        for boot in ("same", "new"):
            made = small.crashed.changed(f"{small.last + 1}.journal", content)
            found = recovered(lay(made, yard.new(), boot))  # type: ignore[arg-type]
            small.agrees(found, small.parts)
            assert found.error is None


def test_appending_goes_on_after_a_torn_tail(small: Small, yard: Yard) -> None:
    for cut in range(small.stale_at, small.parts[-1].end, 11):
        path = lay(cut_off(small.stale, small, cut), yard.new(), "new")
        with Journal(path) as j:
            kept = [record.payload for record in j.recovered()]
            j.append(b"next").result()
        with Journal(path) as j:
            assert [record.payload for record in j.recovered()] == [b"next"]
        assert len(kept) >= 5
