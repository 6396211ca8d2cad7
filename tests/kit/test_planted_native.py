"""The one bug that is planted in the native kernel: the order of the last stores. Each single step of it is looked at, so it is found; where
only lines of the reference kernel are (`test_planted`), nothing would say so of the one that is used.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.building import COMPILER, build
from tests.kit.stepping import NOT_ALLOWED
from tests.queue.crash import NATIVE

_FENCE: Final = "    __atomic_thread_fence(__ATOMIC_RELEASE);\n"
_ORDERS: Final = {  # the word that commits, and what publishes the end
    "    ps_put_head(dst, head);\n": "    ps_publish(w, s + 1, pos + need, us);\n",
    "    ps_put_head(w->data + b->pos, b->head);\n": "    ps_publish(w, b->seq, b->at, b->us);\n",
}

pytestmark = [
    pytest.mark.skipif(not NATIVE, reason="there are no instructions to look at without the native kernel"),
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="steps through it as test_stepping does"
    ),
    pytest.mark.skipif(
        shutil.which(COMPILER) is None or importlib.util.find_spec("Cython") is None,
        reason="a kernel with a bug must be built: that takes a C compiler and Cython",
    ),
]


def publish_first(kernel: Path) -> None:
    """The end is published before the word that commits, with the fence between them as ever."""
    header = kernel / "writer.h"
    source = header.read_text()
    for commit, publish in _ORDERS.items():
        assert source.count(_FENCE + commit + publish) == 1
        source = source.replace(_FENCE + commit + publish, publish + _FENCE + commit)
    header.write_text(source)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("planted"), "-O0", change=publish_first)


@pytest.mark.parametrize(
    ("use", "ops", "what"),
    [
        ("queue", "append,append", "Broken: "),
        ("queue", "append,batch", "Broken: "),
        ("queue", "append,sync,batch", "Broken: "),
        ("channel", "send,send", "assert ch.recovery.damage == []"),
    ],
)
def test_an_end_that_is_published_too_soon_is_found(planted: Path, use: str, ops: str, what: str) -> None:
    command = [sys.executable, "-m", "tests.kit.stepping", use, ops]
    env = {**os.environ, "PYTHONPATH": str(planted)}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    if ran.returncode == NOT_ALLOWED:
        pytest.skip(ran.stdout.strip())
    assert ran.returncode == 1, ran.stdout
    assert f"of {use}, {ops}" in ran.stderr, ran.stderr
    assert what in ran.stderr
