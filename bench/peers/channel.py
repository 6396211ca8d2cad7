"""Penstock's channel: send and receive, with a receiver whose place is kept."""

from __future__ import annotations

from typing import Any, ClassVar

from bench.peers.base import Peer


class PenstockChannel(Peer):
    """One sender, one named receiver, payloads as bytes."""

    name = "penstock-channel"
    label = "penstock (Channel)"
    group = "penstock"
    modules: ClassVar[tuple[str, ...]] = ("penstock",)
    distributions = ("penstock",)
    settings = (
        "Channel(codecs.bytes_()), segments of 512 MiB; send, send_many(500); recv through a named receiver, whose offset is "
        "stored with every message, recv_many(500); durable-batch: crash_consistent=True"
    )
    supports = frozenset({"append", "append-batch", "durable-batch", "read", "read-batch"})

    def open(self) -> None:
        from penstock import Channel

        self.channel = Channel(self.job.directory, crash_consistent=self.job.durable)
        self.sender = self.channel.tx()

    def close(self) -> None:
        self.channel.close()

    def append(self, payload: bytes, count: int) -> None:
        send = self.sender.send
        for _ in range(count):
            send(payload)

    def append_batch(self, batch: Any) -> None:
        self.sender.send_many(batch)

    def rewind(self) -> None:
        if not hasattr(self, "receiver"):
            self.receiver = self.channel.rx("bench")
        self.receiver.seek(self.channel.stats().first_offset)

    def read(self) -> Any:
        recv, end = self.receiver.recv, self.channel.stats().write_offset
        count = self._messages(end)
        payload = None
        for _ in range(count):
            payload = recv()
        return payload

    def _messages(self, end_offset: int) -> int:
        """How many there are: each takes its payload and a frame of 8 bytes."""
        return end_offset // (self.job.size + 8)

    def read_batch(self, count: int) -> Any:
        recv_many, left = self.receiver.recv_many, self._messages(self.channel.stats().write_offset)
        last = None
        while left:
            last = recv_many(min(count, left))
            left -= len(last)
        return last[-1] if last else None
