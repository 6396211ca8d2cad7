"""One run: producers, a driver that is killed halfway and started again, and the proof at the end."""

from __future__ import annotations

import queue
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from penstock.demo import check
from penstock.demo.children import Child, Said
from penstock.demo.flow import MINUTES, PRODUCERS, Flow, marker
from penstock.demo.places import Places
from penstock.demo.screen import Screen
from penstock.demo.watch import Watch
from penstock.errors import PenstockError
from penstock.queue import Queue

RECORDS: Final = 200_000
SEED: Final = 7
_MINUTE_S: Final = 0.25  # at least so long for a minute of event time, so that there is something to follow
_BATCHES: Final = 10  # at least so many micro-batches a query
_PATIENCE_S: Final = 600.0
_RESTARTS: Final = 3  # of drivers that end unasked


class DemoFailed(PenstockError):
    """A process of the demo ended, or did nothing for too long; says which, and where to look."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run."""

    flow: Flow
    places: Places
    watch: Watch
    proof: check.Proof


def run(screen: Screen, *, records: int = RECORDS, seed: int = SEED, directory: Path | None = None) -> Result:
    """Run the pipeline over a flow of so many records, and compare. The directory must be empty; None makes a temporary one."""
    top = directory or Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    top.mkdir(parents=True, exist_ok=True)
    if any(top.iterdir()):
        raise DemoFailed(f"{top} is not empty; name a directory that is, or none for a temporary one")
    with ExitStack() as stack:
        return _Run(screen, Flow(records, seed), Places(top.resolve()), stack).whole()


class _Run:
    def __init__(self, screen: Screen, flow: Flow, places: Places, stack: ExitStack) -> None:
        self._screen = screen
        self._flow = flow
        self._places = places
        self._stack = stack  # kills whatever is still there
        self._heard: queue.SimpleQueue[Said] = queue.SimpleQueue()
        self._watch = Watch()
        self._driver: Child | None = None
        self._driver_is: str | None = None  # ready, finished
        self._to_end = False  # whether drivers are told to end once all is processed
        self._minutes = 0  # told by producers, of each its own

    def whole(self) -> Result:
        with Queue(self._places.orders, file_size=64 << 20):
            pass  # it is there before anybody looks for it
        self._screen.line(f"{self._flow.records:,} records, seed {self._flow.seed}, in {self._places.top}")
        self._start_driver()
        self._screen.line(f"[{self._clock()}] driver {self._pid()} starts: three streaming queries on Spark")
        self._until(lambda: self._driver_is == "ready", "the driver to start")
        self._send()
        self._finish()
        self._screen.line(f"[{self._clock()}] comparing with a recomputation in plain Python")
        proof = check.prove(self._flow, check.read_queue(self._places), check.read_found(self._places))
        return Result(self._flow, self._places, self._watch, proof)

    # ---- the parts of it ----

    def _start_driver(self) -> None:
        most = max(1, self._flow.records // _BATCHES)
        self._driver_is = None
        self._driver = self._child("pipeline", str(self._places.top), str(most))
        if self._to_end:
            self._driver.tell("end")

    def _send(self) -> None:
        """Let producers send, minute for minute, and kill the driver when half is sent."""
        settings = [str(self._flow.records), str(self._flow.seed)]
        producers = [self._child("producer", str(self._places.orders), str(i), *settings) for i in range(PRODUCERS)]
        pids = " and ".join(str(producer.pid) for producer in producers)
        self._screen.line(f"[{self._clock()}] producers {pids} append orders to the queue")
        for minute in range(MINUTES):
            due = time.monotonic() + _MINUTE_S
            for producer in producers:
                producer.tell(str(minute))
            # The next minute starts when all have sent this one: the watermark counts on that.
            wanted = (minute + 1) * PRODUCERS
            self._until(partial(self._sent, wanted, due), "producers")
            if minute + 1 == MINUTES // 2:
                self._until(lambda: all(self._watch.offsets().values()), "a micro-batch of each query")
                self._kill_driver()
        for producer in producers:
            if producer.wait() != 0:
                raise self._failed(producer)
        with Queue(self._places.orders) as orders:
            orders.append(marker())
            orders.sync()
        self._screen.line(f"[{self._clock()}] all is sent; the last record closes all windows")

    def _sent(self, minutes: int, due: float) -> bool:
        return self._minutes >= minutes and time.monotonic() >= due

    def _kill_driver(self) -> None:
        assert self._driver is not None
        self._watch.saw_kill()
        self._driver.kill()
        far = ", ".join(f"{query} {offset:,}" for query, offset in self._watch.killed_at.items())
        self._screen.line(f"[{self._clock()}] driver {self._pid()} killed with SIGKILL; done by then: {far}")
        self._go_on()

    def _go_on(self) -> None:
        self._start_driver()
        others = "" if self._to_end else "; producers go on"
        self._screen.line(f"[{self._clock()}] driver {self._pid()} starts from the checkpoints{others}")

    def _finish(self) -> None:
        """Let the driver process what is there, and end."""
        assert self._driver is not None
        self._to_end = True
        self._driver.tell("end")
        self._until(lambda: self._driver_is == "finished", "the driver to finish")
        if self._driver.wait() != 0:
            raise self._failed(self._driver)
        self._watch.ended_s = self._watch.now_s()
        shutil.rmtree(self._places.scratch, ignore_errors=True)

    # ---- children ----

    def _child(self, module: str, *arguments: str) -> Child:
        child = Child(f"{__package__}.{module}", list(arguments), self._heard, self._places.driver_log)
        self._stack.callback(child.kill)
        return child

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Hear what children say until something holds."""
        patience_s = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > patience_s:
                raise DemoFailed(f"waited {_PATIENCE_S:.0f} s in vain for {what}; see {self._places.driver_log}")
            try:
                said = self._heard.get(timeout=0.05)
            except queue.Empty:
                pass
            else:
                self._take(said)
            self._screen.progress(self._progress())

    def _take(self, said: Said) -> None:
        if said.child.over:
            return  # the last words of one that was killed, or waited for
        if said.what is not None:
            self._note(said.what)
        elif said.child is self._driver and self._watch.ready and self._watch.restarts < _RESTARTS:
            self._driver_ended(said.child)
        else:
            raise self._failed(said.child)

    def _driver_ended(self, driver: Child) -> None:
        """A failure inside Spark, or somebody killed it. Nothing is lost by that, and the next one goes on. One that was never
        ready has another reason, which trying again does not mend."""
        driver.kill()
        self._watch.restarts += 1
        log = self._places.driver_log
        self._screen.line(f"[{self._clock()}] driver {driver.pid} ended unasked; {log} tells why")
        self._go_on()

    def _note(self, what: dict[str, Any]) -> None:
        if "appended" in what:
            self._minutes += 1
            self._watch.saw_append(what)
        elif "query" in what:
            self._watch.saw_batch(what)
        elif "ready" in what:
            self._driver_is = "ready"
            self._watch.saw_ready()
        elif "finished" in what:
            self._driver_is = "finished"

    def _failed(self, child: Child) -> DemoFailed:
        log = self._places.driver_log
        last = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        return DemoFailed(f"{child.name} {child.pid} ended before it was done; the end of {log}:\n{last}")

    # ---- words ----

    def _pid(self) -> int:
        assert self._driver is not None
        return self._driver.pid

    def _clock(self) -> str:
        return f"{self._watch.now_s():5.1f} s"

    def _progress(self) -> str:
        far = ", ".join(f"{query} {offset:,}" for query, offset in self._watch.offsets().items())
        return f"[{self._clock()}] sent {self._watch.appended:,}; processed: {far}"
