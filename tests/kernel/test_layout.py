"""The control page has one layout, told three times: in layout.py, in shared.h and in docs/formats.md."""

import mmap
import re
from pathlib import Path
from types import ModuleType

import pytest

import penstock.kernel
from penstock.kernel import layout, reference, spec
from penstock.kernel.reference import frames
from penstock.kernel.spec import DIRTY, POISONED, REMAP, SPACE
from penstock.storage import control

from .conftest import SLOT, Rig, Slow

HERE = Path(penstock.kernel.__file__).parent
SIZES = {"uint8_t": 1, "uint32_t": 4, "uint64_t": 8, "int64_t": 8, "ps_slot": 64}


def struct_offsets(source: str, name: str) -> dict[str, int]:
    """Offsets of a struct in shared.h; its one union is as long as its `room`."""
    body = re.search(r"typedef struct \{((?:(?!typedef).)*?)\} " + name + ";", source, re.DOTALL)
    assert body is not None
    text = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    text = re.sub(r"union \{.*?(uint8_t) room(\[\d+\]);\s*\} (\w+);", r"\1 \3\2;", text, flags=re.DOTALL)
    offsets, at = {}, 0
    for kind, field, many in re.findall(r"(\w+) (\w+)(?:\[(\d+)\])?;", text):
        assert at % min(SIZES[kind], 8) == 0
        offsets[field] = at
        at += SIZES[kind] * int(many or 1)
    return offsets | {"sizeof": at}


def test_layout_is_that_of_the_header() -> None:
    source = (HERE / "shared.h").read_text()
    page, slot = struct_offsets(source, "ps_control"), struct_offsets(source, "ps_slot")
    assert {name: page[name] for name in ("ready", "poison", "lock", "turn", "generation", "waiters")} == {
        "ready": layout.READY,
        "poison": layout.POISON,
        "lock": layout.LOCK,
        "turn": layout.TURN,
        "generation": layout.GENERATION,
        "waiters": layout.WAITERS,
    }
    assert (page["slots"], page["slots"] + slot["sizeof"]) == layout.SLOTS
    assert (page["base"], page["base"] + 8) == layout.BASES
    assert page["bell"] == layout.WAITERS + 4
    assert slot == SLOT | {"sizeof": 64}


def test_constants_are_those_of_the_headers() -> None:
    source = (HERE / "frames.h").read_text() + (HERE / "writer.h").read_text()
    for name, value in re.findall(r"PS_(\w+) = (\d+)", source):
        if name != "OK":
            assert getattr(spec, name) == int(value), name
    assert f"PS_COMPANION_HEADER {frames.COMPANION_HEADER}\n" in source
    assert f"PS_INDEX_HEADER {frames.INDEX_HEADER}\n" in source
    source = (HERE / "commit.h").read_text()
    assert f"PS_DURABLE_AT {layout.DURABLE}\n" in source
    assert f"PS_PAGE_BYTES {layout.PAGE_BYTES}\n" in source
    assert layout.DURABLE == control._DURABLE_AT
    assert re.search(rf"PS_BLOCK_BYTES {spec.BLOCK_BYTES}u\b", (HERE / "pile.h").read_text())


@pytest.mark.parametrize("turn", [0, 1, 2, 2**40 + 1])
def test_active_reads_these_words(kernel: ModuleType, turn: int) -> None:
    page = kernel.ControlPage(mmap.mmap(-1, layout.PAGE_BYTES))
    for offset in range(0, layout.PAGE_BYTES, 8):
        page.store(offset, 1_000_000 + offset)
    page.store(layout.TURN, turn)
    slot = layout.SLOTS[turn & 1]
    wanted = (slot + layout.SEGMENT, layout.BASES[turn & 1], slot + layout.END, slot + layout.NEXT)
    assert page.active() == (turn, *(1_000_000 + offset for offset in wanted))


@pytest.mark.parametrize("turn", [4, 5])
def test_append_writes_these_words_and_no_others(kernel: ModuleType, turn: int) -> None:
    rig = Rig(kernel, turn=turn)
    before = {offset: rig.page.load(offset) for offset in range(0, layout.PAGE_BYTES, 8)}
    rig.writer.append(b"12345678")
    after = {offset: rig.page.load(offset) for offset in before}
    slot = layout.SLOTS[turn & 1]
    last_us = after[slot + layout.LAST_US]
    assert last_us > 1_600_000_000_000_000
    assert {offset: value for offset, value in after.items() if value != before[offset]} == {
        slot + layout.END: rig.start + 20,
        slot + layout.NEXT: rig.base + 1,
        slot + layout.DIRTY_END: rig.start + 20,
        slot + layout.DIRTY_NEXT: rig.base + 1,
        slot + layout.LAST_US: last_us,
    }


@pytest.mark.parametrize("turn", [4, 5])
def test_append_reads_these_words(kernel: ModuleType, turn: int) -> None:
    rig = Rig(kernel, turn=turn)
    slot = layout.SLOTS[turn & 1]
    for offset, value, code in [
        (layout.TURN, turn + 1, REMAP),
        (layout.POISON, 5, POISONED),
        (slot + layout.DIRTY_END, rig.start + 1, DIRTY),
        (slot + layout.DIRTY_NEXT, rig.base + 1, DIRTY),
        (slot + layout.ALLOCATED, rig.start + 20, SPACE),
        (slot + layout.ENTRIES, rig.base, SPACE),
    ]:
        before = rig.page.load(offset)
        rig.page.store(offset, value)
        with pytest.raises(Slow):
            rig.writer.append(b"123456789")
        assert rig.slow.pop() == (code, 21, 1)
        rig.page.store(offset, before)
    other = layout.SLOTS[turn + 1 & 1]
    for offset in (layout.READY, layout.GENERATION, *range(other, other + 64, 8), layout.BASES[turn + 1 & 1]):
        rig.page.store(offset, 2**64 - 1)  # none of an append's business
    future = 2**60
    rig.slot(last_us=future)
    assert rig.writer.append(b"123456789") == rig.base
    assert rig.stamps(1) == [future]


def test_the_bell(kernel: ModuleType) -> None:
    page = kernel.ControlPage(mmap.mmap(-1, layout.PAGE_BYTES))
    page.store(layout.WAITERS, 0xFFFFFFFE_00000001)
    page.ring()
    assert page.load(layout.WAITERS) == 0xFFFFFFFF_00000000
    page.ring()
    assert page.load(layout.WAITERS) == 0


def test_the_mutex_stays_in_its_place(native: ModuleType) -> None:
    if not native.ROBUST:
        pytest.skip("no robust mutex here")
    room = mmap.mmap(-1, layout.PAGE_BYTES)
    room[:] = b"\xaa" * layout.PAGE_BYTES
    page = native.ControlPage(room)
    page.init_lock()
    page.lock()
    page.store(layout.WAITERS, 0)
    page.unlock()
    changed = [at for at in range(layout.PAGE_BYTES) if room[at] != 0xAA]
    assert min(changed) >= layout.LOCK
    assert max(at for at in changed if not layout.WAITERS <= at < layout.WAITERS + 8) < layout.TURN


# ---- the page itself ----


@pytest.mark.parametrize("offset", [1, 4, 4092, 4096, 2**63])
def test_there_is_no_such_word(kernel: ModuleType, offset: int) -> None:
    page = kernel.ControlPage(mmap.mmap(-1, layout.PAGE_BYTES))
    with pytest.raises(ValueError, match=f"no word at {offset}"):
        page.load(offset)
    with pytest.raises(ValueError, match=f"no word at {offset}"):
        page.store(offset, 1)


def test_a_page_too_small_is_let_go(kernel: ModuleType) -> None:
    room = mmap.mmap(-1, 4095)
    with pytest.raises(ValueError, match="buffer of 4095 bytes"):
        kernel.ControlPage(room)
    room.close()  # nothing holds it


def test_a_read_only_page(kernel: ModuleType) -> None:
    content = bytearray(layout.PAGE_BYTES)
    content[layout.WAITERS] = 1
    frozen = bytes(content)
    with pytest.raises(BufferError):
        kernel.ControlPage(frozen)
    page = kernel.ControlPage(frozen, None, False)
    assert not page.writable
    assert page.active() == (0, 0, 0, 0, 0)
    assert page.wait(0, 1, 0.0)
    assert not page.wait(0, 0, 0.001)
    page.ring()
    for call in (page.init_lock, page.lock, page.unlock, lambda: page.store(layout.TURN, 1)):
        with pytest.raises(ValueError, match="mapped read-only"):
            call()
    with pytest.raises(ValueError, match="mapped read-only"):
        kernel.Writer(page, spec.FrameSpec(), print, print)
    assert frozen == content


def test_the_reference_kernel_needs_a_file_lock() -> None:
    page = reference.ControlPage(mmap.mmap(-1, layout.PAGE_BYTES))
    for call in (page.init_lock, page.lock, page.unlock):
        with pytest.raises(OSError, match="needs a file lock"):
            call()
