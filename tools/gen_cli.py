"""Write docs/cli.md: the reference of every command, from what the commands say of themselves.

    python tools/gen_cli.py

A command is a function: its docstring is the text, and the annotations of its parameters are its arguments and options. So the page
does not depend on how a version of typer lays out its help.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from penstock.cli.app import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"

HEAD = """\
# Commands

<!-- Written by tools/gen_cli.py from the commands themselves: change those, then run `make docs`. -->

`pip install '.[cli]'` in a checkout adds the command `penstock`. Every command finds out by itself which format a log has, and works
beside whoever writes it. Results go to stdout, everything else to stderr; long work shows how far it is when stderr is a terminal.
`--json` prints facts for programs. `-h` or `--help` shows what is here.

| exit status | |
|---|---|
| 0 | all is well, or whoever reads stdout has had enough, as `head` has |
| 1 | something is damaged, or failed |
| 2 | it was used in a wrong way: an unknown option, no log at that path |
| 130 | `append` was interrupted by Ctrl-C: what was read until then is appended |
"""


def page() -> str:
    """The whole page."""
    told = list(commands(app, "penstock"))
    rows = (f"| [`{name}`](#{name.replace(' ', '-')}) | {cell(summary(run))} |" for name, run in told)
    index = "\n".join(["| | |", "|---|---|", *rows])
    return "\n".join([HEAD, index, *(section(name, run) for name, run in told)]) + "\n"


def commands(group: typer.Typer, name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every command of a group and of those in it, by its whole name, in the order of the help."""
    for command in group.registered_commands:
        assert command.callback is not None
        yield f"{name} {command.name or command.callback.__name__}", command.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands(inner.typer_instance, f"{name} {inner.name}")


def section(name: str, run: Callable[..., Any]) -> str:
    """What there is to say of one command."""
    text, _, example = (inspect.getdoc(run) or "").partition("Example: ")
    out = [f"\n## {name}\n", marked(text.strip())]
    if example:
        out.append(f"\n```\n{example.strip()}\n```")
    rows = list(parameters(run))
    if rows:
        out += ["\n| | |", "|---|---|", *rows]
    return "\n".join(out)


def summary(run: Callable[..., Any]) -> str:
    """The first sentence."""
    return re.split(r"(?<=\.)\s", inspect.getdoc(run) or "", maxsplit=1)[0]


def parameters(run: Callable[..., Any]) -> Iterator[str]:
    """A row for each argument, then for each option."""
    hints = get_type_hints(run, include_extras=True)
    found = [(p, hints[p.name]) for p in inspect.signature(run).parameters.values()]
    told = [(p, *get_args(hint)[:2]) for p, hint in found if get_origin(hint) is Annotated]
    for parameter, kind, info in sorted(told, key=lambda t: isinstance(t[2], OptionInfo)):
        said = cell(info.help or "") + "".join(f" {note}." for note in notes(parameter.default, kind, info))
        yield f"| {code(spelling(parameter.name, kind, info))} | {said} |"


def notes(default: object, kind: Any, info: ArgumentInfo | OptionInfo) -> Iterator[str]:
    """What is not in an option's help."""
    if default is inspect.Parameter.empty and isinstance(info, OptionInfo):
        yield "Required"
    elif default not in (None, False, inspect.Parameter.empty):
        yield f"Default: `{default}`"
    if isinstance(info, OptionInfo) and any(get_origin(one) is list for one in (kind, *get_args(kind))):
        yield "May be given several times"


def spelling(name: str, kind: Any, info: ArgumentInfo | OptionInfo) -> str:
    """How it is typed: `PATH`, `--json`, `-n N`, `--format queue|topic`."""
    if isinstance(info, ArgumentInfo):
        return info.metavar or name.upper()
    # Within Annotated the first name is where a default would be.
    names = [one for one in (info.default, *(info.param_decls or ())) if isinstance(one, str)]
    value = "" if kind is bool else info.metavar or choices(kind) or name.upper()
    return f"{', '.join(names) or '--' + name.replace('_', '-')} {value}".strip()


def choices(kind: Any) -> str:
    """What an option may be, if there are but few."""
    if get_origin(kind) in (Union, UnionType):
        return next(filter(None, map(choices, get_args(kind))), "")
    return "|".join(get_args(kind)) if get_origin(kind) is Literal else ""


def cell(text: str) -> str:
    """Text that may stand in a table."""
    return marked(" ".join(text.split())).replace("|", "&#124;")


def code(text: str) -> str:
    """Code that may stand in a table: not everybody takes the backslash off a bar between backticks."""
    return f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def marked(text: str) -> str:
    """Text with its options as code, where they are not yet."""
    return re.sub(r"`[^`]*`|(?<![\w-])--?[a-z][a-z-]*", lambda found: f"`{found[0].strip('`')}`", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
