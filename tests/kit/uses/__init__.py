"""Every use of the engine, as the crash kit drives it: a few operations each, what they promise, and what must hold after a crash.

`base` says what a use is. Those of one kind are a module each, and all of them are in `USES`, by the names that are given on a command line.
"""

from __future__ import annotations

from tests.kit.uses.base import Use
from tests.kit.uses.channels import ChannelUse
from tests.kit.uses.cursors import CursorsUse
from tests.kit.uses.journals import JournalUse
from tests.kit.uses.queues import QueueBatchUse, QueueEachUse, QueueUse
from tests.kit.uses.sinks import SinkUse, TopicSinkUse
from tests.kit.uses.topics import TopicUse

USES: dict[str, type[Use]] = {
    use.name: use
    for use in (
        QueueUse,
        QueueEachUse,
        QueueBatchUse,
        ChannelUse,
        JournalUse,
        TopicUse,
        CursorsUse,
        SinkUse,
        TopicSinkUse,
    )
}
