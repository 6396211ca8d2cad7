"""One producer: a process of its own that appends its share of the flow, a minute of it each time it is told to.

    python -m penstock.demo.producer QUEUE PRODUCER RECORDS SEED

Reads numbers of minutes from standard input, one a line, and says what it has appended on standard output. Ends with the input.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Final

from penstock.demo.flow import Flow
from penstock.queue import Queue

_BATCH: Final = 100


def main(argv: list[str]) -> int:
    """Append what is asked for."""
    path, producer, records, seed = argv[0], int(argv[1]), int(argv[2]), int(argv[3])
    flow = Flow(records, seed)
    with Queue(path) as queue:
        for line in sys.stdin:
            minute = int(line)
            payloads = flow.chunk(producer, minute)
            began = time.perf_counter()
            for i in range(0, len(payloads), _BATCH):
                queue.append_batch(payloads[i : i + _BATCH])
            took_s = time.perf_counter() - began
            print(json.dumps({"minute": minute, "appended": len(payloads), "took_s": took_s}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
