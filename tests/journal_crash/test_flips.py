"""Single flipped bits, one at a time, in every file of a journal: found and named, or harmless.

Frames have no checksum: the companion has it. The control page and the manifest say where the files end; what they say wrong is told
by another mark, or by a file that does not agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from penstock import CorruptRecord, Journal, Loss, PenstockError, Record, RecoveryUnfinished
from penstock.kernel import layout
from penstock.storage import companion, control
from penstock.testing.state import Boot
from tests.journal_crash.small import CHECKED, Part, Small, build
from tests.journal_crash.wreck import Found, lay, one_in, recovered
from tests.queue.crash import Image, Yard


@pytest.fixture(scope="module")
def small(yard: Yard) -> Small:
    return build(yard.keep())


def data_names(small: Small) -> list[str]:
    return [f"{n}.journal" for n in range(small.last + 1)]


def accounted(small: Small, found: Found) -> None:
    """Whatever is not there is said to be lost, and nothing is there that was not appended."""
    if found.error is not None and not isinstance(found.error, CorruptRecord):
        assert isinstance(found.error, PenstockError)
        return  # it was not opened: nothing was changed, nothing is lost
    came = iter(found.payloads)
    left = next(came, None)
    for part in small.parts:
        if part.kind != 0:
            continue
        if part.body == left:
            left = next(came, None)
        else:
            assert part.group <= CHECKED or part.sequence in found.lost, f"record {part.sequence} is lost silently"
    assert left is None, f"nobody appended {left!r} there"


def unharmed(small: Small, found: Found) -> None:
    assert found.error is None
    small.agrees(found, small.parts)
    assert (found.checked, found.current) == (1, 5)


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as f:
        f.seek(bit // 8)
        (old,) = f.read(1)
        f.seek(bit // 8)
        f.write(bytes([old ^ 1 << bit % 8]))


def flipped(path: Path, bits: Iterable[int]) -> Iterator[int]:
    """One bit after the other is flipped, and right again before the next."""
    for bit in bits:
        flip(path, bit)
        yield bit
        flip(path, bit)


@pytest.fixture
def opened(small: Small, yard: Yard) -> Iterator[tuple[Journal, Path]]:
    """The journal opened, and where its old files are. Walks over them that are not finished change nothing."""
    with pytest.warns(RecoveryUnfinished), Journal(lay(small.closed, yard.new(), "same")) as j:
        yield j, j.path / "recovery" / "0"


def skipping(j: Journal) -> tuple[list[Record], set[int]]:
    losses: list[Loss] = []
    got = [record for records in j._walk("skip", losses) for record in records]
    return got, {n for loss in losses for n in range(loss.first, loss.last + 1)}


def test_every_flip_in_a_record_costs_that_record_and_no_other(opened: tuple[Journal, Path], small: Small) -> None:
    j, there = opened
    for name in data_names(small):
        parts = [part for part in small.parts if part.file == int(name.split(".")[0])]
        for bit in flipped(there / name, range(0, 8 * parts[-1].end, one_in(3))):
            hit = next(part for part in parts if part.end > bit // 8)
            got, lost = skipping(j)
            assert lost == {hit.sequence}, (name, bit)
            accounted(small, Found(got, [Loss(n, n, "") for n in lost], None))
            if hit.kind == 0 and hit.group > CHECKED:
                assert [(r.payload, r.group) for r in got] == small.wanted([p for p in small.parts if p != hit])
            if bit % 7 == 0:
                with pytest.raises(CorruptRecord) as caught:
                    list(j._walk("raise", []))
                assert (caught.value.position, caught.value.sequence) == (hit.start, hit.sequence)
                assert caught.value.path == str(there / name)


def test_every_flip_in_a_companion_costs_at_most_its_record(opened: tuple[Journal, Path], small: Small) -> None:
    """Of a checksum, that record, which cannot be told from a damaged one; else nothing."""
    j, there = opened
    everything = small.wanted(small.parts)
    for name in data_names(small):
        parts = [part for part in small.parts if part.file == int(name.split(".")[0])]
        size = companion.HEADER_BYTES + 16 * len(parts)
        for bit in flipped(there / f"{name}.time", range(0, 8 * size, one_in(3))):
            at = bit // 8 - companion.HEADER_BYTES
            got, lost = skipping(j)
            if at < 0 or at % 16 < 8:
                assert lost == set()
                assert [(r.payload, r.group) for r in got] == everything
            else:
                hit = parts[at // 16]
                assert lost == {hit.sequence}
                accounted(small, Found(got, [Loss(n, n, "") for n in lost], None))


def opening(small: Small, yard: Yard, image: Image, name: str, bits: Iterable[int], boot: Boot) -> Iterator[Found]:
    """The whole way: flipped, opened, walked."""
    for bit in bits:
        found = recovered(lay(image.flipped(name, bit), yard.new(), boot))
        accounted(small, found)
        yield found


@pytest.mark.parametrize("state", ["crashed", "closed"])
@pytest.mark.parametrize("boot", ["same", "new"])
def test_flips_in_data_and_companions_before_opening(small: Small, yard: Yard, boot: Boot, state: str) -> None:
    image = getattr(small, state)
    for n, name in enumerate([*data_names(small), *(f"{name}.time" for name in data_names(small))]):
        bits = range(n, 8 * len(image[name]), one_in(131))
        for found in opening(small, yard, image, name, bits, boot):
            assert found.error is None or isinstance(found.error, CorruptRecord)
            assert len(found.lost) <= 1


# What the control page says, but for the mutex and what is not used.
PAGE = [
    *range(8 * 0, 8 * 64),
    *range(8 * layout.TURN, 8 * (layout.TURN + 16)),
    *range(8 * layout.SLOTS[0], 8 * (layout.SLOTS[1] + 64)),
    *range(8 * layout.BASES[0], 8 * (layout.BASES[1] + 8)),
    *range(8 * control._DURABLE_AT, 8 * (control._DURABLE_AT + 32)),
    *range(8 * control._CLEAN_AT, 8 * (control._CLEAN_AT + 32)),
    *range(8 * control._SPAN_AT, 8 * (control._SPAN_AT + 40)),
]


@pytest.mark.parametrize("state", ["crashed", "closed"])
@pytest.mark.parametrize("boot", ["same", "new"])
def test_flips_in_the_control_page_lose_nothing_silently(small: Small, yard: Yard, boot: Boot, state: str) -> None:
    image = getattr(small, state)
    exact = 0
    bits = PAGE[:: one_in(29)]
    for found in opening(small, yard, image, ".lock", bits, boot):
        exact += found.error is None
    assert exact > len(bits) // 2


def test_a_page_that_says_less_than_it_knows_to_be_durable_is_not_believed(small: Small, yard: Yard) -> None:
    """The end, the sequence, and the segment that is active, each set back."""
    slot = layout.SLOTS[small.crashed[".lock"][layout.TURN] & 1]
    for field in (layout.END, layout.SEGMENT):
        for value in (0, 1, 20, 40):
            image = small.crashed.put(".lock", slot + field, value.to_bytes(8, "little"))
            if field == layout.SEGMENT and value > small.last:
                continue
            unharmed(small, recovered(lay(image, yard.new(), "same")))
    turned = small.crashed.put(".lock", layout.TURN, bytes([small.crashed[".lock"][layout.TURN] ^ 1]))
    unharmed(small, recovered(lay(turned, yard.new(), "same")))


def test_a_page_that_was_closed_clean_says_twice_where_it_ends(small: Small, yard: Yard) -> None:
    """So one that says more than there is is not believed either."""
    slot = layout.SLOTS[small.closed[".lock"][layout.TURN] & 1]
    for field in (layout.END, layout.NEXT, layout.SEGMENT):
        image = small.closed.put(".lock", slot + field, (1 << 40).to_bytes(8, "little"))
        unharmed(small, recovered(lay(image, yard.new(), "same")))


@pytest.mark.parametrize("state", ["crashed", "closed"])
@pytest.mark.parametrize("boot", ["same", "new"])
def test_flips_in_the_manifest_lose_nothing(small: Small, yard: Yard, boot: Boot, state: str) -> None:
    image = getattr(small, state)
    for found in opening(small, yard, image, "manifest", range(0, 8 * len(image["manifest"]), one_in(37)), boot):
        if found.error is None:
            unharmed(small, found)


def test_flips_in_the_small_files(small: Small, yard: Yard) -> None:
    for found in opening(small, yard, small.closed, ".writer", range(0, 8 * 64, one_in(29)), "same"):
        unharmed(small, found)
    size = 8 * len(small.closed["metadata.json"])
    for found in opening(small, yard, small.closed, "metadata.json", range(0, size, one_in(7)), "same"):
        if found.error is None:
            unharmed(small, found)


def test_nothing_but_the_data(small: Small, yard: Yard) -> None:
    """Everything else may be gone: the numbers of the files and their records tell all."""
    unharmed(small, recovered(lay(small.crashed, yard.new(), "same")))
    unharmed(small, recovered(lay(small.closed, yard.new(), "new")))
    data = Image({name: small.crashed[name] for name in data_names(small)})
    unharmed(small, recovered(lay(data, yard.new(), "new")))
    for gone in (".lock", "manifest", "metadata.json", ".writer", "0.journal.time", "2.journal.time"):
        for boot in ("same", "new"):
            unharmed(small, recovered(lay(small.crashed.without(gone), yard.new(), boot)))  # type: ignore[arg-type]


def test_where_the_parts_are(small: Small) -> None:
    """The tests above rest on it."""
    assert [part.sequence for part in small.parts] == list(range(len(small.parts)))
    kinds = {(part.kind, bool(part.body)) for part in small.parts}
    assert kinds == {(0, True), (0, False), (1, True)}
    for name in data_names(small):
        entries = companion.Times(small.closed[f"{name}.time"], 16)
        mine: list[Part] = [part for part in small.parts if part.file == int(name.split(".")[0])]
        assert len(entries) == len(mine)
        assert [entries.ends_batch(i) for i in range(len(mine))] == [part.end == part.batch_end for part in mine]
