"""Builds the native kernel from a copy of the sources, as no build for users is: with other flags, or with a mistake in it. The ordinary build
stays what it is. Used by `tests.sanitize` and tests/kit/test_planted_native.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support import ROOT

COMPILER = os.environ.get("CC", "cc")


class NotBuilt(Exception):
    """What the compiler said."""


def build(top: Path, flags: str, link: str = "", change: Callable[[Path], None] = lambda kernel: None) -> Path:
    """A copy below `top`, of which `change` may change the kernel's sources, and its kernel; the path to import it from."""
    place = top / "src"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(
        ROOT / "src", place, ignore=shutil.ignore_patterns("*.so", "_native.c", "__pycache__", "*.egg-info")
    )
    shutil.copy(ROOT / "setup.py", top)
    change(place / "penstock" / "kernel")
    told = {"PENSTOCK_BUILD": "require", "PENSTOCK_CFLAGS": flags, "PENSTOCK_LDFLAGS": link}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "src", "--build-temp", "temp", "--force"]
    done = subprocess.run(command, cwd=top, env={**os.environ, **told}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotBuilt(done.stderr)
    return place
