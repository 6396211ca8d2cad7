"""The parent's end of a worker process: start it, ask it one thing, be sure that it is gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.peers import PEERS
from bench.plan import Request

ROOT = Path(__file__).parent.parent


class WorkerFailed(Exception):
    """The worker did not answer with figures; the message is what the row shows."""


class Worker:
    """One worker process, for one request.

    `leader=True` gives it a session of its own, so that it and all that it starts can be killed together; the
    helpers which a worker starts stay in its session.
    """

    def __init__(self, request: Request, *, leader: bool) -> None:
        self.leader = leader
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker"],
            cwd=ROOT,
            env={**os.environ, **PEERS[request.peer].env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            start_new_session=leader,
        )
        self._say(request.to_json())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.errors.close()

    def _say(self, data: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone; `result` says why
            self.process.stdin.write(json.dumps(data).encode() + b"\n")
            self.process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return self._understand(line)

    def _understand(self, line: bytes) -> dict[str, Any]:
        if not line.strip():
            self.process.wait()
            raise WorkerFailed(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(str(answer["error"]))
        return answer

    def _last_words(self) -> str:
        """What a worker that gave no answer left on stderr, in one line."""
        self.errors.seek(0)
        lines = [line for line in self.errors.read().decode(errors="replace").splitlines() if line.strip()]
        code = self.process.returncode
        how = f"killed by {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        return f"{how}: {lines[-1].strip()[:200]}" if lines else how

    def wait_ready(self) -> None:
        """Wait until a helper stands at the start line."""
        self._hear()

    def go(self) -> None:
        """Let a helper start."""
        self._say("go")

    def result(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The worker's answer."""
        try:
            out, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise WorkerFailed(f"took longer than {timeout_s:.0f} s") from None
        lines = out.splitlines()
        return self._understand(lines[-1] if lines else b"")

    def kill(self) -> None:
        """End the process, and for a leader all that it started, at once."""
        if self.leader:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        elif self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
