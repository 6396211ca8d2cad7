"""The second processes of the scenarios that need one: writers which start when told to."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bench.clock import quiet, run_for
from bench.payloads import marker, payloads, stamped
from bench.peers.base import Job, Peer
from bench.plan import BATCH, Request
from bench.scenarios import Values, crash_messages

AtStart = Callable[[], None]
"""Tells the other process that this one is ready, and waits for its word."""


def paced_writer(kind: type[Peer], request: Request, at_start: AtStart) -> Values:
    """Appends at a modest rate, asleep in between, every message stamped with the time of its sending."""
    budget = request.budget
    count = budget.tail_messages + budget.tail_messages // 10
    peer = kind(Job(Path(request.directory), request.size))
    peer.open()
    pause = 1 / budget.tail_rate
    clock = time.monotonic_ns
    quiet()
    at_start()
    due = time.monotonic()
    for _ in range(count):
        due += pause
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        peer.append_visible(peer.encode(stamped(clock(), request.size)), 1)
    peer.close()
    return {"messages": float(count)}


def timed_writer(kind: type[Peer], request: Request, at_start: AtStart) -> Values:
    """Appends as fast as it can for the time of one measurement."""
    budget = request.budget
    limit = budget.messages(request.size) // 2
    peer = kind(Job(Path(request.directory), request.size))
    peer.open()
    payload = peer.encode(payloads(request.size, 1)[0])

    def work(count: int) -> None:
        peer.append_visible(payload, count)

    warm = run_for(work, budget.warmup_seconds, limit // 10)
    quiet()
    at_start()
    start = time.monotonic()
    lap = run_for(work, budget.seconds, limit - warm.done, warm.step)
    end = time.monotonic()
    peer.close()
    return {"messages": float(lap.done), "start": start, "end": end}


def crash_writer(kind: type[Peer], request: Request, at_start: AtStart) -> Values:
    """Fills most of one file and then stands still, to be killed."""
    count = crash_messages(request)
    peer = kind(Job(Path(request.directory), request.size))
    peer.open()
    messages = payloads(request.size, BATCH)
    batch = peer.encode_batch(messages)
    for _ in range(count // BATCH - 1):
        peer.append_batch(batch)
    peer.append_batch(peer.encode_batch([*messages[:-1], marker(request.size)]))
    at_start()
    return {}


ROLES: dict[str, Callable[[type[Peer], Request, AtStart], Values]] = {
    "paced-writer": paced_writer,
    "timed-writer": timed_writer,
    "crash-writer": crash_writer,
}
