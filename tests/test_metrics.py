"""Metrics of open logs: as facts, through OpenTelemetry, and to Prometheus; and nothing of it where nobody asks."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from penstock import Channel, CorruptRecord, Journal, Queue, Topics, extras, metrics
from penstock.metrics import LogMetrics
from tests.support import ROOT, until


def of(path: Path, partition: int = 0) -> LogMetrics:
    (found,) = [m for m in metrics.snapshot() if m.path == str(path) and m.partition == partition]
    return found


def test_a_queue(path: Path) -> None:
    with Queue(path, file_size=1 << 16) as q:
        tailer = q.tailer("billing")
        q.append_batch([b"x" * 100] * 10)
        first = of(path)
        assert (first.format, first.appends, first.bytes) == ("queue", 10, 0)
        for _ in range(10):
            assert tailer.read()
        tailer.commit()
        q.append_batch([b"x" * 100] * 5)
        q.sync()
        now = of(path)
        assert (now.appends, now.undurable, now.lag) == (15, 0, {"billing": 5})
        assert 500 < now.bytes < 700
        assert now.syncs > first.syncs
        assert now.sync_s > first.sync_s
        assert now.disk_bytes >= now.reserved_bytes > 0
        assert (now.rolls, now.corruptions, now.recoveries) == (0, 0, 0)
        q.append_batch([b"x" * 30_000])
        q.append_batch([b"x" * 30_000] * 2)
        rolled = of(path)
        assert rolled.rolls == 1
        assert rolled.roll_s > 0
        assert 90_000 < rolled.bytes - now.bytes < 90_100
    assert not [m for m in metrics.snapshot() if m.path == str(path)]


def test_what_was_damaged_and_mended(path: Path) -> None:
    with Queue(path, file_size=1 << 20) as q:
        q.append_batch([b"a" * 50, b"b" * 50])
    (file,) = path.rglob("*.data")
    with file.open("r+b") as f:
        at = file.read_bytes().index(b"a" * 50)
        f.seek(at)
        f.write(b"!")
    with Queue(path) as q:
        with pytest.raises(CorruptRecord):
            q.tailer().read()
        assert of(path).corruptions == 1
    (path / "manifest").unlink()
    with Queue(path):
        assert of(path).recoveries == 1


def test_the_other_uses(tmp_path: Path) -> None:
    with (
        Channel[bytes](tmp_path / "channel") as channel,
        Journal(tmp_path / "journal") as journal,
        Topics(tmp_path / "topics") as topics,
    ):
        channel.rx("worker")
        channel.tx().send_many([b"one", b"two"])
        journal.append(b"one").result()
        topic = topics.topic("orders", 2)
        topic.tailer(name="all").commit()
        topic.publish_many([b"1", b"2", b"3"], partition=1).wait()
        found = of(tmp_path / "channel")
        assert (found.format, found.appends, found.lag) == ("channel", 2, {"worker": 2})
        found = of(tmp_path / "journal")
        assert found.format == "journal"
        assert found.syncs > 0
        found = of(tmp_path / "topics" / "orders", 1)
        assert (found.format, found.appends, found.lag) == ("topic", 3, {"all": 3})
        assert found.syncs > of(tmp_path / "topics" / "orders", 0).syncs
        assert found.sync_s > 0


def test_through_open_telemetry(path: Path) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    try:
        metrics.install(provider)
        with Queue(path) as q:
            q.tailer("billing").commit()
            q.append_batch([b"x"] * 7)
            q.sync()
            data = reader.get_metrics_data()
    finally:
        provider.shutdown()
    assert data is not None
    (scope,) = [s for r in data.resource_metrics for s in r.scope_metrics if s.scope.name == "penstock"]
    values = {
        (metric.name, point.attributes.get("reader")): point.value
        for metric in scope.metrics
        for point in metric.data.data_points
        if point.attributes["path"] == str(path)
    }
    assert values["penstock.appends", None] == 7
    assert values["penstock.lag", "billing"] == 7
    assert values["penstock.undurable", None] == 0
    assert {name for name, _ in values} == {*metrics._COUNTERS, *metrics._GAUGES, "penstock.lag"}


def test_without_open_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape(extras.install("metrics"))):
        metrics.install()


def test_nobody_who_does_not_ask_loads_it() -> None:
    code = "import sys, penstock, penstock.metrics; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_prometheus(path: Path) -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples/metrics/prometheus.py"), str(path), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        url = served.stdout.readline().strip()
        try:

            def text() -> str:
                with urllib.request.urlopen(url, timeout=10) as page:
                    return str(page.read().decode())

            until(lambda: 'reader="billing"' in text(), "a lag is told", 20)
            page = text()
        finally:
            served.send_signal(signal.SIGINT)
    assert served.returncode == 0
    assert "penstock_appends_total{" in page or "penstock_appends_records_total{" in page
    assert f'path="{path}"' in page
