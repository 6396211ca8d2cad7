"""What is measured, and how. The functions run in worker processes; everybody reads the table at the end."""

from __future__ import annotations

import array
import importlib
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

from bench.clock import percentiles, quiet, run_bursts, run_for
from bench.payloads import marker, payloads, stamp
from bench.peers.base import Job, Peer
from bench.plan import BATCH, Request
from bench.process import Worker

Values = dict[str, float]


class WrongResult(Exception):
    """A peer did not give back what was written; its rate would mean nothing."""


# --- writing ------------------------------------------------------------------------------------------------


def _job(request: Request, *, durable: bool = False) -> Job:
    return Job(Path(request.directory), request.size, durable)


def _rate(count: int, seconds: float) -> Values:
    return {
        "rate": count / seconds,
        "messages": float(count),
        "seconds": seconds,
    }


def _bursts_and_sustained(peer: Peer, work: Callable[[int], None], request: Request, unit: int) -> Values:
    """The rate in bursts and without any pause; the better of the two is the peer's.

    Bursts suit those who prepare in the background (Penstock touches pages ahead), no pause suits those who
    profit from warm caches. `unit` is the number of messages in what `work` counts.
    """
    budget = request.budget
    limit = max(4, budget.messages(request.size) // unit)
    burst = max(1, budget.burst(request.size) // unit)
    warm = run_for(work, budget.warmup_seconds, limit // 8)
    peer.settle()
    lap = run_bursts(work, peer.settle, budget.seconds * 0.6, limit // 2, burst, warm.step)
    rest = run_for(work, budget.seconds * 0.4, limit - warm.done - lap.done, lap.step)
    start = perf_counter()
    peer.settle()
    spent = rest.seconds + perf_counter() - start
    bursts = lap.done * unit / lap.seconds
    sustained = rest.done * unit / spent
    best = max(bursts, sustained)
    return {"rate": best, "bursts": bursts, "sustained": sustained}


def append(kind: type[Peer], request: Request) -> Values:
    """One message per call."""
    peer = kind(_job(request))
    peer.open()
    payload = peer.encode(payloads(request.size, 1)[0])
    quiet()
    values = _bursts_and_sustained(peer, lambda count: peer.append(payload, count), request, 1)
    peer.close()
    return values


def _batch_work(peer: Peer, size: int) -> Callable[[int], None]:
    batch = peer.encode_batch(payloads(size, BATCH))
    append_batch = peer.append_batch
    quiet()

    def work(count: int) -> None:
        for _ in range(count):
            append_batch(batch)

    return work


def append_batch(kind: type[Peer], request: Request) -> Values:
    """Batches of 500."""
    peer = kind(_job(request))
    peer.open()
    values = _bursts_and_sustained(peer, _batch_work(peer, request.size), request, BATCH)
    peer.close()
    return values


def durable_batch(kind: type[Peer], request: Request) -> Values:
    """Batches of 500, each on disk before the next."""
    budget = request.budget
    peer = kind(_job(request, durable=True))
    peer.open()
    work = _batch_work(peer, request.size)
    limit = max(4, budget.messages(request.size) // BATCH)
    warm = run_for(work, budget.warmup_seconds, limit // 4)
    lap = run_for(work, budget.seconds, limit - warm.done, warm.step)
    peer.close()
    return _rate(lap.done * BATCH, lap.seconds)


def latency(kind: type[Peer], request: Request) -> Values:
    """Calls at a fixed pace with a clock around each: how long the slow ones take."""
    budget = request.budget
    count = int(budget.latency_rate * budget.latency_seconds)
    peer = kind(_job(request))
    peer.open()
    payload = peer.encode(payloads(request.size, 1)[0])
    run_for(lambda n: peer.append(payload, n), budget.warmup_seconds, budget.messages(request.size) // 10)
    call = peer.appender()
    took = array.array("q", bytes(8 * count))
    pace = int(1e9 / budget.latency_rate)
    clock = perf_counter_ns
    quiet()
    due = clock()
    for index in range(count):
        while (start := clock()) < due:
            pass
        call(payload)
        took[index] = clock() - start
        due += pace
    peer.close()
    return percentiles(took)


# --- reading ------------------------------------------------------------------------------------------------


def fill(kind: type[Peer], request: Request) -> Values:
    """Write a log to read: `request.messages` of them, or if that is 0 as many as the time allows."""
    budget = request.budget
    exact = request.messages
    limit = exact or budget.messages(request.size)
    if kind.max_fill and not exact:
        limit = min(limit, kind.max_fill)
    peer = kind(_job(request))
    peer.open()
    messages = payloads(request.size, BATCH)
    batch = peer.encode_batch(messages)
    start = perf_counter()
    count = 0
    while count + BATCH < limit and (exact or perf_counter() - start < budget.fill_seconds):
        peer.append_batch(batch)
        count += BATCH
    rest = min(BATCH, limit - count)
    peer.append_batch(peer.encode_batch([*messages[: rest - 1], marker(request.size)]))
    peer.close()
    return {"messages": float(count + rest)}


def _passes(kind: type[Peer], request: Request, one_pass: Callable[[Peer], Any]) -> Values:
    """Read the log from start to end, again and again until the time is over."""
    messages = request.messages
    if request.op in kind.consumes:
        messages = int(fill(kind, request)["messages"])
    peer = kind(_job(request))
    peer.open()
    expected = peer.encode(marker(request.size))
    quiet()

    def timed() -> float:
        peer.rewind()
        start = perf_counter()
        last = one_pass(peer)
        seconds = perf_counter() - start
        if last != expected:
            raise WrongResult("the last message read is not the last one written")
        return seconds

    first = timed()
    spent, passes = 0.0, 0
    if request.op in kind.consumes or first > request.budget.seconds:
        spent, passes = first, 1  # there is no second time, or it would only repeat a long pass
    while not passes or (request.op not in kind.consumes and spent < request.budget.seconds):
        spent += timed()
        passes += 1
    peer.close()
    return _rate(messages * passes, spent)


def read(kind: type[Peer], request: Request) -> Values:
    """One message at a time, by iteration."""
    return _passes(kind, request, lambda peer: peer.read())


def read_batch(kind: type[Peer], request: Request) -> Values:
    """Lists of 500."""
    return _passes(kind, request, lambda peer: peer.read_batch(BATCH))


def scan_arrow(kind: type[Peer], request: Request) -> Values:
    """All payloads into pyarrow arrays."""
    importlib.import_module("pyarrow")
    return _passes(kind, request, lambda peer: peer.scan_arrow())


# --- two processes ------------------------------------------------------------------------------------------


def _helper(request: Request, role: str, directory: Path) -> Worker:
    """A second process of the same peer; it stops at the start line and waits for `go`."""
    data = {**request.to_json(), "op": role, "directory": str(directory)}
    return Worker(Request.from_json(data), leader=False)


def tail_latency(kind: type[Peer], request: Request) -> Values:
    """Another process appends now and then: how long until this one, which waits, has the message."""
    directory = Path(request.directory)
    budget = request.budget
    skip = budget.tail_messages // 10  # the first ones find cold caches on both sides
    count = budget.tail_messages + skip
    with _helper(request, "paced-writer", directory) as writer:
        writer.wait_ready()
        reader = kind(_job(request))
        reader.open_reader()
        took = array.array("q")
        clock = time.monotonic_ns
        messages = reader.follow()
        quiet()
        writer.go()
        for _ in range(count):
            payload = next(messages)
            took.append(clock() - stamp(payload))
        writer.result()
        reader.close()
    return percentiles(took[skip:])


def two_writers(kind: type[Peer], request: Request) -> Values:
    """What two processes append together, and what one of them appends alone."""
    base = Path(request.directory)
    rates = []
    for writers in (1, 2):
        directory = base / str(writers)
        directory.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            helpers = []
            for _ in range(writers):
                helper = stack.enter_context(_helper(request, "timed-writer", directory))
                helper.wait_ready()  # one after the other: the first one creates the store
                helpers.append(helper)
            for helper in helpers:
                helper.go()
            done = [helper.result() for helper in helpers]
        shutil.rmtree(directory, ignore_errors=True)
        # From the first start to the last end, so that a writer which only waited counts against the pair.
        spent = max(one["end"] for one in done) - min(one["start"] for one in done)
        rates.append(sum(one["messages"] for one in done) / spent)
    alone, together = rates
    return {"rate": together, "one_rate": alone, "ratio": together / alone}


# --- opening ------------------------------------------------------------------------------------------------


def open_clean(kind: type[Peer], request: Request) -> Values:
    """Open a large log that was closed cleanly, until it has taken one message and given back the first."""
    peer = kind(_job(request))
    payload = peer.encode(payloads(request.size, 1)[0])
    start = perf_counter()
    peer.open()
    peer.append_visible(payload, 1)
    first = peer.first()
    seconds = perf_counter() - start
    if first != payload:  # the generator starts every batch with it
        raise WrongResult("the first message read is not the first one written")
    peer.close()
    return {"ms": seconds * 1000, "records": float(request.messages)}


def recovery(kind: type[Peer], request: Request) -> Values:
    """Open a log whose writer was killed in the middle of a large file."""
    directory = Path(request.directory)
    with _helper(request, "crash-writer", directory) as writer:
        writer.wait_ready()
        writer.kill()
    messages = crash_messages(request)
    peer = kind(_job(request))
    expected = peer.encode(marker(request.size))
    start = perf_counter()
    peer.open()
    seconds = perf_counter() - start
    peer.rewind()
    if peer.read() != expected:
        raise WrongResult("the last message written is not there after the recovery")
    peer.close()
    size = messages * request.size
    return {"gb_per_s": size / seconds / 1e9, "ms": seconds * 1000, "bytes": float(size)}


def crash_messages(request: Request) -> int:
    """How many messages nearly fill one file of `recovery_bytes`, with room for their frames."""
    return int(request.budget.recovery_bytes * 0.98) // (request.size + 32) // BATCH * BATCH


# --- the table ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario. `headline` is the value rows are compared by; `log` names a log it shares with others."""

    name: str
    title: str
    measure: Callable[[type[Peer], Request], Values]
    headline: str
    higher_is_better: bool = True
    log: str = ""


_ALL = (
    Scenario("append", "one message per call", append, "rate"),
    Scenario("append-batch", "batches of 500", append_batch, "rate"),
    Scenario("durable-batch", "batches of 500, each on disk before the next", durable_batch, "rate"),
    Scenario("read", "one message at a time, by iteration", read, "rate", log="read"),
    Scenario("read-batch", "lists of 500", read_batch, "rate", log="read"),
    Scenario("scan-arrow", "all payloads into pyarrow arrays", scan_arrow, "rate", log="read"),
    Scenario("tail-latency", "append in one process until seen by one that waits", tail_latency, "p50_us", False),
    Scenario("latency", "time of one append call at 200 000 calls/s, nothing flushed", latency, "p999_us", False),
    Scenario("two-writers", "two processes append to one log, one message per call", two_writers, "rate"),
    Scenario("open-clean", "open a log that was closed", open_clean, "ms", False, log="open"),
    Scenario("recovery", "open a log after kill -9 of its writer", recovery, "gb_per_s"),
)

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
GROUPS: dict[str, tuple[str, ...]] = {
    "open": ("open-clean", "recovery"),
    "channel": ("append", "append-batch", "read", "read-batch"),
}
"""Names that stand for several scenarios."""
