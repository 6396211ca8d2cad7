"""A process that has a log of each format open, and appends what it is told: `format text`, a line each, on stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock import Channel, Journal, Queue, Topics


def main(top: Path) -> None:
    with (
        Queue(top / "queue") as queue,
        Channel[bytes](top / "channel") as channel,
        Journal(top / "journal") as journal,
        Topics(top / "topics", linger_s=0) as topics,
    ):
        sender, topic = channel.tx(), topics.topic("topic", partitions=2)
        appends = {
            "queue": queue.append,
            "channel": sender.send,
            "journal": lambda payload: journal.append(payload).result(),
            "topic": lambda payload: topic.publish(payload).wait(),
        }
        print("ready", flush=True)
        for line in sys.stdin:
            name, _, text = line.rstrip("\n").partition(" ")
            appends[name](text.encode())
            print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
