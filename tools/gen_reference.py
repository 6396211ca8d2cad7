"""Write docs/reference.md: the public names of the package, from their signatures and docstrings.

    python tools/gen_reference.py

Names are those of `penstock.__all__`; errors have a page of their own. Records are described as the reference kernel has them: a compiled class
has no signature to read.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import penstock
from penstock import codecs
from penstock.kernel import reference

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"

HEAD = """\
# Reference

<!-- Written by tools/gen_reference.py from signatures and docstrings: change those, then run `make docs`. -->

Everything that `from penstock import …` gives but for errors, which are in [errors.md](errors.md). Classes without arguments here are not made by
you: another object gives them.
"""
_MADE: Final = {
    "Channel",
    "Flush",
    "Journal",
    "Queue",
    "Retention",
    "Roll",
    "Topics",
}  # by a user, so that their arguments matter
_AS_REFERENCE: Final = {"Message", "Record"}
_FIELD: Final = re.compile(r"^    (\w+): ([^=#\n]+?)(?: = ([^#\n]+?))?(?:  # (.+))?$", re.MULTILINE)


def page() -> str:
    """The whole page."""
    classes = [
        (name, getattr(reference if name in _AS_REFERENCE else penstock, name))
        for name in sorted(penstock.__all__)
        if inspect.isclass(getattr(penstock, name)) and not issubclass(getattr(penstock, name), Exception)
    ]
    return "\n".join([HEAD, *(line for name, kind in classes for line in section(name, kind)), *of_codecs()]) + "\n"


def section(name: str, kind: type) -> Iterator[str]:
    """What there is to say of one class."""
    yield f"## {name}\n"
    if name in _MADE:
        yield f"```\n{name}{signature(kind, wrap=True)}\n```\n"
    yield text(inspect.getdoc(kind)) + "\n"
    rows = [] if name in _MADE else list(fields(kind))  # else its arguments have told them
    if rows:
        yield "\n".join(["| field | | |", "|---|---|---|", *rows]) + "\n"
    members = sorted(public(kind), key=lambda found: found[0])
    if members:
        yield "\n".join(member(key, value) for key, value in members) + "\n"


def public(kind: type) -> Iterator[tuple[str, Any]]:
    """The methods and properties of a class, with those of its bases that are ours."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith(penstock.__name__):
            continue
        for key, value in vars(base).items():
            if not key.startswith("_") and key not in seen and is_member(value):
                seen.add(key)
                yield key, value


def is_member(value: object) -> bool:
    return isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)


def member(name: str, value: Any) -> str:
    """One line of the list."""
    if isinstance(value, property):
        return f"- `{name}`: {told(name, value)}"
    run = getattr(value, "__func__", value)
    awaited = "await " if inspect.iscoroutinefunction(run) else ""
    return f"- `{awaited}{name}{signature(run)}`: {told(name, run)}"


def told(name: str, value: object) -> str:
    found = inspect.getdoc(value)
    assert found, f"{name} says nothing of itself: {value}"
    return text(found).replace("\n", "\n  ").replace("\n  \n", "\n\n")


def signature(run: Callable[..., Any], *, wrap: bool = False) -> str:
    """Arguments, types and defaults, as they are written."""
    found = inspect.signature(run)
    parts: list[str] = []
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts and not any(p.startswith("*") for p in parts):
            parts.append("*")
        parts.append(argument(parameter))
    if wrap:
        return "(\n    " + ",\n    ".join(parts) + ",\n)"
    back = found.return_annotation
    return f"({', '.join(parts)})" + (f" -> {back}" if isinstance(back, str) and back != "None" else "")


def argument(parameter: inspect.Parameter) -> str:
    """`name: type = default`."""
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    typed = f": {parameter.annotation}" if isinstance(parameter.annotation, str) else ""
    if parameter.default is parameter.empty:
        return f"{star}{parameter.name}{typed}"
    return f"{parameter.name}{typed}{' = ' if typed else '='}{parameter.default!r}"


def fields(kind: type) -> Iterator[str]:
    """A row for each field of a class that is made of fields."""
    if not (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
        return
    body = inspect.getsource(kind).partition("    def ")[0]
    for name, type_, default, comment in _FIELD.findall(body):
        if not name.startswith("_"):
            shown = "" if not default or default.startswith("field(") else f"Default: `{default}`"
            yield f"| `{name}: {type_.replace('|', 'or')}` | {shown} | {comment} |"


def text(doc: str | None) -> str:
    """A docstring without its examples, which are run where they stand."""
    return "\n\n".join(part for part in (doc or "").split("\n\n") if not part.startswith(">>> "))


def of_codecs() -> Iterator[str]:
    """The functions of `penstock.codecs`."""
    yield "## codecs\n"
    yield text(inspect.getdoc(codecs)) + "\n"
    made = [
        (name, value)
        for name, value in sorted(vars(codecs).items())
        if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == codecs.__name__
    ]
    yield "\n".join(f"- `codecs.{name}{signature(value)}`: {told(name, value)}" for name, value in made)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
