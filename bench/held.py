"""The figures Penstock holds itself to, computed from the run at hand and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.results import Results


@dataclass(frozen=True, slots=True)
class Figure:
    """One promise: what is asked for, what came out, and whether that will do (none: not measured)."""

    name: str
    need: str
    got: str
    passed: bool | None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


NOT_MEASURED = "not measured in this run"
CHANNEL_BYTES = 512
"""Messages of up to this size a channel hands over at the rates it is held to."""


def _at_least(name: str, got: float | None, need: float, unit: str, scale: float = 1.0) -> Figure:
    wanted = f"≥ {need / scale:g} {unit}"
    if got is None:
        return Figure(name, wanted, NOT_MEASURED, None)
    return Figure(name, wanted, f"{got / scale:.3g} {unit}", got >= need)


def _at_most(name: str, got: float | None, need: float, unit: str) -> Figure:
    wanted = f"≤ {need:.4g} {unit}"
    if got is None:
        return Figure(name, wanted, NOT_MEASURED, None)
    return Figure(name, wanted, f"{got:.3g} {unit}", got <= need)


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _and_sustained(figure: Figure, ratio: float | None) -> Figure:
    """Say beside a rate that may come from bursts what it is without pauses; the verdict stays."""
    return (
        figure
        if ratio is None or figure.passed is None
        else replace(figure, got=f"{figure.got} (sustained {ratio:.3g})")
    )


def figures(results: Results) -> list[Figure]:
    """All of them, at the smallest size measured: that is where the work per message shows. The channel's at every small one."""
    sizes = results.sizes()
    if not sizes:
        return []
    small = [size for size in sizes if size <= CHANNEL_BYTES] or sizes[:1]
    return [*_figures(results, sizes[0]), *(figure for size in small for figure in _channel_figures(results, size))]


def _figures(results: Results, size: int) -> Iterator[Figure]:
    def value(scenario: str, peer: str, key: str = "rate") -> float | None:
        return results.value(scenario, size, peer, key)

    at = f"at {size} B"
    append = _ratio(value("append", "noop"), value("append", "penstock"))
    sustained = _ratio(value("append", "noop", "sustained"), value("append", "penstock", "sustained"))
    yield _and_sustained(_at_most(f"append against an empty call, {at}", append, 2.3, "x"), sustained)

    for peer, what in (("penstock", "list of 500"), ("penstock-arrow", "Arrow array of 500")):
        batch, sustained = (
            _ratio(value("append-batch", peer, key), value("append-batch", "lmdb", key))
            for key in ("rate", "sustained")
        )
        figure = _at_least(f"append_batch ({what}) against lmdb, {at}", batch, 10, "x")
        yield _and_sustained(figure, sustained)

    read = _ratio(value("read", "penstock"), value("read", "lmdb"))
    yield _at_least(f"reading by iteration against lmdb's cursor, {at}", read, 2, "x")

    arrow = value("scan-arrow", "penstock")
    python = _ratio(arrow, value("read", "penstock-reference"))
    yield _at_least(f"read_arrow against reading in pure Python, {at}", python, 20, "x")
    yield _at_least(f"read_arrow, {at}", arrow, 30e6, "M messages/s", 1e6)

    best = results.best_peer("durable-batch", size)
    best_rate = best.headline() if best else None
    durable = _ratio(value("durable-batch", "penstock"), best_rate)
    against = f"the best peer ({best.label})" if best else "the best peer"
    yield _at_least(f"durable batches of 500 against {against}, {at}", durable, 1.3, "x")

    for peer, what in (("penstock-topic", "topic: publish"), ("penstock-journal", "journal: append")):
        rate, bare = value("durable-batch", peer), value("durable-batch", "grow-fdatasync")
        figure = _at_least(f"{what}, durable batches of 500 against {against}, {at}", _ratio(rate, best_rate), 1.3, "x")
        share = _ratio(rate, bare)
        yield figure if share is None else replace(figure, got=f"{figure.got} ({share:.0%} of write+fdatasync in C)")

    two = value("two-writers", "penstock", "ratio")
    yield _at_least(f"two writers together against one, {at}", two, 0.5, "x")

    noop = value("latency", "noop", "p999_us")
    tail = value("latency", "penstock", "p999_us")
    name = f"append p99.9 at 200 000/s, {at}"
    if noop is None:
        yield Figure(name, "≤ the empty call's p99.9 + 1 µs", NOT_MEASURED, None)
    else:
        yield _at_most(f"{name}, against the empty call's {noop:.3g} µs + 1 µs", tail, noop + 1, "µs")

    wake = value("tail-latency", "penstock", "p50_us")
    figure = _at_most(f"append to a waiting process, p50, {at}", wake, 50, "µs")
    yield Figure(figure.name, "< 50 µs", figure.got, None if wake is None else wake < 50)

    opened = value("open-clean", "penstock", "ms")
    records = value("open-clean", "penstock", "records")
    what = f"a closed log of {records / 1e6:g} M messages" if records else "a closed log"
    figure = _at_most(f"open {what}, {at}", opened, 50, "ms")
    yield Figure(figure.name, "< 50 ms", figure.got, None if opened is None else opened < 50)

    yield _at_least(f"recovery after kill -9, {at}", value("recovery", "penstock", "gb_per_s"), 1, "GB/s")
    walked = value("recovery", "penstock-journal", "gb_per_s")
    yield _at_least(f"journal: open and walk after kill -9, {at}", walked, 1, "GB/s")


def _channel_figures(results: Results, size: int) -> Iterator[Figure]:
    for scenario, what, need in (
        ("append", "send", 2e6),
        ("append-batch", "send_many of 500", 5e6),
        ("read", "recv", 2e6),
        ("read-batch", "recv_many of 500", 5e6),
    ):
        rate = results.value(scenario, size, "penstock-channel", "rate")
        yield _at_least(f"channel: {what}, at {size} B", rate, need, "M messages/s", 1e6)
