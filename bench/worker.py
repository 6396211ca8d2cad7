"""A process that measures one thing: a line of JSON on stdin asks, the last line of JSON on stdout answers.

One process per measurement, so that no peer inherits the memory, the caches or the threads of another.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

from bench.peers import PEERS
from bench.peers.base import Peer, Unavailable
from bench.plan import Request
from bench.roles import ROLES
from bench.scenarios import SCENARIOS, fill


def _claim_stdout() -> int:
    """Keep stdout for answers: whatever a library prints goes to stderr instead."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def _import(kind: type[Peer]) -> None:
    """Import the peer's packages now, so that no clock runs while Python does that."""
    for module in kind.modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            packages = " ".join(kind.distributions) or module
            if isinstance(error, ModuleNotFoundError) and error.name == module:
                raise Unavailable(f"{module} is not installed (pip install {packages})") from error
            raise Unavailable(f"{module} does not import: {error}") from error


def _serve(request: Request, answers: int) -> dict[str, Any]:
    kind = PEERS[request.peer]
    _import(kind)
    if request.op == "fill":
        return dict(fill(kind, request))
    if request.op in SCENARIOS:
        return dict(SCENARIOS[request.op].measure(kind, request))

    def at_start() -> None:
        os.write(answers, b'{"ready": true}\n')
        sys.stdin.readline()

    return dict(ROLES[request.op](kind, request, at_start))


def main() -> int:
    """Serve one request. Any failure becomes an answer: a row that says why is worth more than none."""
    answers = _claim_stdout()
    request = Request.from_json(json.loads(sys.stdin.readline()))
    try:
        answer = _serve(request, answers)
    except Unavailable as error:
        answer = {"error": str(error)}
    except Exception as error:
        text = str(error).strip().splitlines()
        answer = {"error": f"{type(error).__name__}: {text[0] if text else ''}".rstrip(": ")}
    os.write(answers, json.dumps(answer).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
