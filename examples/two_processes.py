"""The queue at work from two processes: one appends, the other follows, and is killed with -9 in the middle.

Run it with `python examples/two_processes.py`. Nothing acknowledged is lost, and the reader goes on where it last committed.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from penstock import Flush, Queue, Roll, kernel

RECORDS = 300_000


def follow(path: str, until: int) -> None:
    """The second process: a named tailer that commits every thousand records and says how far it is."""
    with Queue(path) as q:
        t = q.tailer("billing")
        print(f"  reader {os.getpid()}: starts at {t.position}", flush=True)
        for m in t.follow():
            if t.position % 1000 == 0:
                t.commit()
            if m.sequence == until - 1:
                t.commit()
                print(f"  reader {os.getpid()}: has read up to {t.position}", flush=True)
                return


def start_reader(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "follow", str(path), str(RECORDS)])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as top:
        path = Path(top) / "orders"
        print(f"{kernel.NAME} kernel, queue at {path}")
        with Queue(
            path, file_size=8 << 20, roll=Roll.size(8 << 20), flush=Flush.batch(bytes=1 << 20, interval_s=0.1)
        ) as q:
            reader = start_reader(path)
            began = time.perf_counter()
            for i in range(RECORDS):
                q.append(f'{{"order": {i}, "amount": {i % 97}}}'.encode())
                if i == RECORDS // 2:
                    while not q.cursors().get("billing"):
                        time.sleep(0.01)
                    os.kill(reader.pid, signal.SIGKILL)
                    reader.wait()
                    print(f"  writer {os.getpid()}: killed the reader, which had committed {q.cursors()['billing']}")
                    reader = start_reader(path)
            took = time.perf_counter() - began
            print(f"  writer {os.getpid()}: {RECORDS} appends in {took:.2f} s, durable up to {q.sync()}")
            if reader.wait(timeout=120):
                sys.exit("the reader failed")
            print(f"  committed positions: {q.cursors()}")
            last = q.tailer(direction="backward").read()
            assert last is not None
            print(f"  last record: {last.sequence} at {last.timestamp}: {last.payload.decode()}")
        with Queue(path, verify_on_startup=True) as q:
            files = sum(1 for _ in path.rglob("*.data"))
            print(
                f"reopened: {q.next_sequence - q.first_sequence} records in {files} files, damage: {q.recovery.damage or 'none'}"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["follow"]:
        follow(sys.argv[2], int(sys.argv[3]))
    else:
        main()
