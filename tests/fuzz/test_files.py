"""A short campaign of hostile files, and what is known to have come of some. tests/fuzz/campaign.py does as many as one likes."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from penstock import Channel, NotALog, Queue, Topics
from penstock.inspect import find
from penstock.inspect.facts import look
from penstock.inspect.rows import Rows
from penstock.storage import checked
from penstock.storage.ledger import Ledger
from penstock.storage.losses import FILE, LossList
from penstock.storage.offsets import Offsets
from penstock.verify import verify
from tests.fuzz import corpus
from tests.fuzz.campaign import WORK, campaign
from tests.queue.crash import NATIVE, Image
from tests.repair import logs
from tests.topic_crash import wreck

CASES = 140 if NATIVE else 35


def test_hostile_files_are_refused_or_cost_records_and_nothing_else() -> None:
    result = campaign(CASES, seed=1)
    assert not result.failures, result.failures[0]
    assert result.cases == CASES
    reached = {outcome.partition(": ")[0] for outcome in result.outcomes if outcome.endswith(": fine")}
    assert reached == set(WORK), "every kind of work got through at least once"
    errors = {outcome.partition(": ")[2] for outcome in result.outcomes} - {"fine"}
    assert "NotALog" in errors, "and something was refused"


def test_every_sort_of_file_is_changed_and_sealed() -> None:
    """Else the fuzz would not reach what it is for."""
    told: dict[str, set[str]] = {}
    for number in range(4000):
        kind = corpus.KINDS[number % len(corpus.KINDS)]
        for one in corpus.hostile(kind, random.Random(number))[1].split("; "):
            name, what = one.split(": ")
            told.setdefault(corpus.sort_of(name), set()).add(what)
    wanted = {
        "manifest",
        "cursor",
        "ledger",
        "losses",
        "metadata.json",
        ".lock",
        "offset",
        "N-N.data",
        "N-N.index",
        "N-N.time",
    }
    wanted |= {"segment.N", "segment.N.z", "N.journal", "N.journal.time", "partition_N_segment_N.log"}
    assert wanted <= told.keys()
    for sort in wanted:
        assert any(what.endswith("sealed") for what in told[sort]), sort


def test_sealed_again_a_file_is_as_it_was() -> None:
    for kind in corpus.KINDS:
        for name, data in corpus.image(kind).items():
            assert corpus.seal(name, data) == data, name


def laid(kind: str, path: Path, **changed: bytes) -> Path:
    image = Image(corpus.image(kind))
    for sort, data in changed.items():
        for name in [name for name in image if name.rsplit("/", 1)[-1] == sort]:
            image[name] = corpus.seal(name, data)
    return wreck.lay(image, path, "new")


# ---- each that was found ----


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"5",
        b'{"version": 1}',
        b'{"version": 1, "losses": [5]}',
        b'{"version": 1, "losses": {"a": 1}}',
        b"[" * 100_000,
        b"\xff",
    ],
    ids=["list", "number", "none", "no loss", "wrong", "deep", "no text"],
)
def test_a_loss_list_with_a_right_checksum_and_no_sense(path: Path, text: bytes) -> None:
    laid("queue", path, losses=text + b"\n00000000\n")
    with pytest.raises(NotALog, match=r"losses: does not say what it should.*penstock repair"):
        LossList(path).all()
    assert any(finding.kind == "losses" for finding in verify(path).findings)


@pytest.mark.parametrize(
    "change",
    [("first", -1), ("first", "3"), ("last", 2), ("end", 50), ("position", 1 << 64), ("segment", None)],
    ids=str,
)
def test_a_loss_that_cannot_be(path: Path, change: tuple[str, object]) -> None:
    laid("queue", path)
    one = {"segment": "x", "first": 3, "last": 4, "position": 100, "end": 200, "reason": "r", "us": 1}
    checked.store(path / FILE, {"version": 1, "losses": [{**one, change[0]: change[1]}]})
    with pytest.raises(NotALog, match="does not say what it should"):
        LossList(path).all()


def test_a_loss_list_does_not_lead_back(path: Path) -> None:
    """It would be read for ever."""
    laid("channel", path)
    with Rows(find(path), on_corrupt="skip") as rows:
        whole = [row.offset for row in rows.now()]
    starts = [64]
    for payload in logs.SENT[:4]:
        starts.append(starts[-1] + 8 + len(payload))
    data = bytearray((path / "segment.0").read_bytes())
    data[starts[4] + 9] ^= 1
    (path / "segment.0").write_bytes(data)
    listed = {"segment": "segment.0", "first": 3, "last": 4, "position": 64, "end": starts[3], "reason": "r", "us": 1}
    checked.store(path / FILE, {"version": 1, "losses": [listed]})
    with Rows(find(path), on_corrupt="skip") as rows:
        assert [row.offset for row in rows.now()] == [n for n in whole if n != 4]


@pytest.mark.parametrize(
    "text", [b"[]", b'{"done": 5, "intent": null}', b'{"done": {"w": "x"}, "intent": null}', b'{"done": {}}']
)
def test_a_ledger_with_a_right_checksum_and_no_sense(path: Path, text: bytes) -> None:
    laid("queue", path, ledger=text + b"\n00000000\n")
    with Queue(path) as q, pytest.raises(NotALog, match="ledger: does not say what it should"):
        Ledger(q._open_log()).highest("w")
    assert any(finding.kind == "ledger" for finding in verify(path).findings)


@pytest.mark.parametrize("value", ["1e400", "[]", "null", "99999999999999999999999", "-1", '"x"', "true"])
@pytest.mark.parametrize("kind", ["channel", "topic"])
def test_settings_that_cannot_be(path: Path, kind: str, value: str) -> None:
    top = laid(kind, path) / ("t" if kind == "topic" else ".")
    name = "partitions" if kind == "topic" else "index_interval"
    text = (top / "metadata.json").read_text()
    (top / "metadata.json").write_text(re.sub(rf'("{name}": )\d+', rf"\g<1>{value}", text))
    look(path, processes=False)  # whoever only looks goes on with what there is
    with Rows(find(path), on_corrupt="skip") as rows:
        assert len(list(rows.now())) == logs.COUNT
    if value != "true":
        with pytest.raises(NotALog, match=r"metadata\.json"):
            Channel(path) if kind == "channel" else Topics(path).topic("t")


def test_a_slot_that_cannot_be_takes_no_room(path: Path) -> None:
    laid("channel", path)
    with Channel[bytes](path) as c:
        assert c._log is not None
        c._log.cursors.store("reader", 1 << 40)
        size = (path / "offset").stat().st_size
        with pytest.raises(NotALog, match=r"cursors/reader: slot 1099511627776"):
            c.rx("reader")
    assert (path / "offset").stat().st_size == size
    offsets = Offsets(path / "offset")
    with pytest.raises(NotALog):
        offsets.reach(1 << 20, path)
    offsets.close()


@pytest.mark.parametrize(
    ("field", "value"), [(16, 1 << 62), (24, 1 << 50), (32, 1 << 50), (16, (1 << 64) - 1)], ids=str
)
def test_a_manifest_with_right_checksums_and_numbers_that_cannot_be(path: Path, field: int, value: int) -> None:
    """base, records and end of an edit: it counts as damaged, and the manifest is made anew from the files."""
    data = bytearray(corpus.image("queue")["manifest"])
    data[64 + field : 64 + field + 8] = value.to_bytes(8, "little")
    laid("queue", path, manifest=bytes(data))
    with Queue(path) as q:
        assert "manifest" in " ".join(q.recovery.rebuilt)
        assert [m.payload for m in q.tailer()] == logs.SENT


def test_a_data_file_that_says_it_begins_beyond_all_numbers(path: Path) -> None:
    image = corpus.image("queue")
    name = next(name for name in image if name.endswith("0001.data"))
    data = bytearray(image[name])
    data[16:24] = (1 << 63).to_bytes(8, "little")
    laid("queue", path, **{name.rsplit("/", 1)[-1]: bytes(data)})
    with Queue(path, read_only=True) as q:
        assert [m.payload for m in q.tailer()] == logs.SENT, "its companion says which they are"
    assert [f.kind for f in verify(path).findings] == ["header"]
