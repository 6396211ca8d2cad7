"""The channel: as its random stories tell and judge it."""

from __future__ import annotations

import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from penstock import DiskFull, PenstockError, StorageFailed
from penstock.testing.state import Boot
from tests.channel_crash.story import Story
from tests.kit.uses.base import Broken, Use, must


class ChannelUse(Use):
    name = "channel"
    ops = ("send", "send_many", "receive", "acknowledge", "work", "reopen")
    appends = ("send", "send_many")
    at_end = ("anew",)
    long = (  # two segments are compressed, and all readers pass the first one only after that
        *(
            "send",
            "send",
            "send_many",
            "work",
            "receive",
            "acknowledge",
            "send",
            "send",
            "work",
            "receive",
            "acknowledge",
        ),
        *(
            "receive",
            "acknowledge",
            "receive",
            "acknowledge",
            "work",
            "send",
            "anew",
            "reopen",
            "work",
            "receive",
            "send",
        ),
    )
    rarely = ("send_many", "anew", "reopen")
    durable = ("send", "send_many")
    _options: ClassVar[dict[str, Any]] = {"crash_consistent": True, "compression": "zstd"}

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.story = Story(path, 0, **self._options)

    def now(self) -> Story:
        return self.story.told()

    def open(self) -> None:
        self.story._ch = None
        try:
            self.story.open()
            for name, ack in (("ada", False), ("bob", True)):
                if name not in self.story.readers:
                    self.story.new_reader(name, ack=ack)
        except BaseException:
            if self.story._ch is not None:
                with suppress(PenstockError):
                    self.story.close()
            raise

    def close(self) -> None:
        self.story.close()

    def read(self) -> None:
        try:
            self.story.look()
        except (DiskFull, StorageFailed) as error:  # what is compressed is inflated into a file
            must(any(self.path.glob("*.z")), "readers go on", error)

    def send(self) -> None:
        self.story.send(160)  # the third goes to a new file

    def send_many(self) -> None:
        self.story.send_many([0, 100])

    def receive(self) -> None:
        self.story.receive("ada", 3)
        self.story.receive("bob", of=0)
        self.story.receive("bob", of=1)

    def acknowledge(self) -> None:
        """First those beyond a gap."""
        self.story.acknowledge("bob", 3, of=1)
        self.story.acknowledge("bob", 1, of=0)

    def work(self) -> None:
        self.story._work()

    def anew(self) -> None:
        """A reader goes, and one of its name comes, who has its slot and yet begins with the earliest message."""
        if "ada" in self.story.readers:  # else it was forgotten, and then something failed
            self.story.forget("ada")
        self.story.new_reader("ada", ack=False)

    @classmethod
    def recover(cls, path: Path) -> None:
        story = Story(path, 0, **cls._options)
        story.open()
        try:
            story._work()
        finally:
            story.close()

    @classmethod
    def judge(cls, path: Path, told: Story, boot: Boot) -> int:
        try:
            told.judge(path, strict=True)
        except AssertionError as error:
            raise Broken(str(error) or traceback.extract_tb(error.__traceback__)[-1].line) from error
        return len(told.sent)

    @classmethod
    def promised(cls, told: Story) -> object:
        readers = [
            (name, r.ack, sorted(r.done), sorted(r.doing), r.making, r.forgetting) for name, r in told.readers.items()
        ]
        return told.sent, told.sending, sorted(told.ends), readers, told.retired, told.gaps
