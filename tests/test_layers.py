"""The shape of the package: a row imports only from rows above it, and importing it is cheap. See DESIGN, "Layers"."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import penstock

PACKAGE = Path(penstock.__file__).parent
ROWS = [
    ["errors", "times", "extras"],
    ["options"],
    ["kernel"],
    ["formats", "codecs"],
    ["storage"],
    ["queue", "channel", "journal", "topic"],
    ["inspect", "testing"],
    ["verify", "writing"],
    ["repair"],
    ["dump", "appending", "cursors", "retaining", "compressing", "metrics", "quickbench"],
    ["converting"],
    ["spark"],
    ["doctor"],
    ["demo"],
    ["cli"],
]
ROW = {name: i for i, names in enumerate(ROWS) for name in names}
WITHIN = {
    "kernel",
    "storage",
    "topic",
    "inspect",
    "testing",
    "spark",
    "demo",
    "cli",
}  # whose modules may import each other
LATE = {
    "asyncio",
    "opentelemetry",
    "pyarrow",
    "pyspark",
    "typer",
    "rich",
    "fsspec",
    "cramjam",
    "msgspec",
    "numpy",
    "pandas",
}


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "__pycache__" not in p.parts)


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, *, at_import_only: bool = False) -> Iterator[str]:
    """The modules that a file imports, by full name; optionally only those imported as soon as it is."""

    def visit(node: ast.AST) -> Iterator[str]:
        if at_import_only:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                for child in node.orelse:
                    yield from visit(child)
                return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import; write the whole name"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    yield from visit(ast.parse(path.read_text()))


def own(names: Iterator[str]) -> set[str]:
    """Those of the package, as modules: `penstock.storage.files.sync` is `penstock.storage.files`."""
    known = {dotted(p) for p in modules()} | {f"{PACKAGE.name}.kernel._native"}
    found = set()
    for name in names:
        if name.split(".")[0] != PACKAGE.name:
            continue
        while name not in known:
            name = name.rpartition(".")[0]
        found.add(name)
    return found


def row(module: str) -> str:
    """The part of the package that a module is in: `penstock.storage.log` is in `storage`."""
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_a_module_imports_only_from_rows_above_it(path: Path) -> None:
    here = dotted(path)
    if here == PACKAGE.name:
        return  # the public names: it may import everything, and nothing imports it but for its parts
    assert row(here) in ROW, f"{here} is in no row; add it to DESIGN's list and to this one"
    for module in own(imports(path)) - {here}:
        there = row(module)
        if there == "":
            assert module == PACKAGE.name
            pytest.fail(f"{here} imports the package itself; import the module that has the name")
        if there == row(here):
            assert there in WITHIN, f"{here} imports its sibling {module}"
        else:
            assert ROW[there] < ROW[row(here)], f"{here} imports {module}, which is not above it"


@pytest.mark.parametrize("part", sorted(WITHIN & {p.name for p in PACKAGE.iterdir()}))
def test_the_modules_of_a_part_have_an_order(part: str) -> None:
    graph = {
        dotted(p): {m for m in own(imports(p)) if row(m) == part and m != f"{PACKAGE.name}.{part}"}
        for p in modules()
        if row(dotted(p)) == part and p.name != "__init__.py"
    }
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError otherwise


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_heavy_packages_are_imported_only_when_they_are_used(path: Path) -> None:
    here = row(dotted(path))
    found = {name.split(".")[0] for name in imports(path, at_import_only=True)} & LATE
    if here in ("spark", "demo", "cli"):
        return
    assert found == set()
    anywhere = {name.split(".")[0] for name in imports(path)} & LATE
    assert anywhere <= {"asyncio", "pyarrow", "cramjam", "msgspec", "opentelemetry"}, (
        f"{anywhere} above spark/ and cli/"
    )


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_only_files_opens_writes_syncs_and_renames(path: Path) -> None:
    if row(dotted(path)) not in ("storage", "queue", "channel", "journal", "topic") or path.name == "files.py":
        return
    wanted = {"open", "write", "fsync", "fdatasync", "replace", "rename", "unlink", "remove", "truncate", "ftruncate"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called != "open", f"{path.name}:{node.lineno}: open() belongs in files.py"
            assert called not in {f"os.{name}" for name in wanted}, f"{path.name}:{node.lineno}: {called}"
            method = called.rpartition(".")[2]
            assert method not in ("write_bytes", "write_text", "read_bytes", "read_text"), f"{path.name}:{node.lineno}"


def test_there_is_no_module_for_odds_and_ends() -> None:
    assert not {"utils", "util", "helpers", "common", "misc"} & {p.stem for p in modules()}


IMPORT = """
import sys, time
before = set(sys.modules)
started = time.process_time()
import penstock
took = time.process_time() - started
new = {name.split(".")[0].lstrip("_") for name in set(sys.modules) - before}
print(took)
new = {name for name in new if not name.startswith("cython_")}  # made by a compiled module itself
print(*sorted(new - set(sys.stdlib_module_names) - {n.lstrip("_") for n in sys.stdlib_module_names} - {"penstock"}))
"""


def imported(kernel: str) -> tuple[float, set[str]]:
    """How much of a processor's time `import penstock` takes, and which third-party packages it brings."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT],
        env={**os.environ, "PENSTOCK_KERNEL": kernel},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    took, _, names = done.stdout.partition("\n")
    return float(took), set(names.split())


def test_importing_the_package_imports_nothing_else() -> None:
    assert imported("reference")[1] == {"fastcrc"}
    if penstock.kernel.NAME == "native":
        assert imported("native")[1] == set()


def test_importing_the_package_takes_less_than_200_ms() -> None:
    took = []
    while len(took) < 10 and min(took, default=1.0) >= 0.2:  # the machine may be busy
        took.append(imported("")[0] if penstock.kernel.NAME == "native" else imported("reference")[0])
    assert min(took) < 0.2
