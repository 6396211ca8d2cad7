"""How to get what is installed only if it is asked for: the extras of `pyproject.toml`. Every message about one that is missing uses this."""

from __future__ import annotations


def install(extra: str) -> str:
    """What to do if an extra is missing; true of a checkout and of a package index alike."""
    return f"install Penstock with its extra `{extra}` (in a checkout: pip install '.[{extra}]')"
