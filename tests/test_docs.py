"""Every Python example in the README, in docs/ and in docstrings runs; every file and make target they name exists.

The bytes that docs/formats.md gives for a Python expression are those it makes. (Its table of frames is read by the tests of
the kernels.)
"""

import doctest
import importlib
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import penstock
from penstock.formats import channel, journal, topic
from penstock.kernel import encode, encode_many

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def examples() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for i, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
            found.append((f"{page.name}:{i}", block))
    return found


@pytest.mark.parametrize(("where", "code"), [e for e in examples() if ".follow()" not in e[1]], ids=lambda v: v[:20])
def test_example_runs(where: str, code: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, f"{where}\n{ran.stderr}"


@pytest.mark.parametrize(("where", "code"), [e for e in examples() if ".follow()" in e[1]], ids=lambda v: v[:20])
def test_example_that_follows_sees_what_is_appended(where: str, code: str, tmp_path: Path) -> None:
    with penstock.Queue(tmp_path / "orders") as q:
        command = [sys.executable, "-u", "-W", "error", "-c", code]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            stop = threading.Event()

            def keep_appending() -> None:  # the reader starts at the end, whenever that is
                while not stop.wait(0.01):
                    q.append(b"news")

            appender = threading.Thread(target=keep_appending)
            appender.start()
            try:
                assert "news" in reader.stdout.readline(), where
            finally:
                stop.set()
                appender.join()
                reader.kill()


SOURCE = ROOT / "src"
MODULES = [p.relative_to(SOURCE).with_suffix("") for p in sorted(SOURCE.rglob("*.py")) if ">>> " in p.read_text()]


@pytest.mark.parametrize("module", [".".join(path.parts) for path in MODULES])
def test_docstring_examples_run(module: str) -> None:
    ran = doctest.testmod(importlib.import_module(module))
    assert ran.attempted
    assert not ran.failed


VECTOR = re.compile(
    r"^\| `((?:encode\w*|channel|journal|topic)\b[^`]+)` \| `([^`]+)`(?:, zeros to (\d+))? \|$", re.MULTILINE
)
VECTORS = VECTOR.findall((ROOT / "docs" / "formats.md").read_text())


def test_the_vectors_are_there() -> None:
    made = [expression for expression, _, _ in VECTORS]
    for fmt in ("channel", "journal", "topic"):
        assert any(f"{fmt}.SPEC" in expression for expression in made), fmt
    assert len(made) == 8


@pytest.mark.parametrize(("expression", "said", "padded"), VECTORS, ids=lambda v: v[:40])
def test_vector(expression: str, said: str, padded: str) -> None:
    names = {"encode": encode, "encode_many": encode_many, "channel": channel, "journal": journal, "topic": topic}
    made = eval(expression, names)
    assert made == (bytes.fromhex(said).ljust(int(padded or 0), b"\0") if isinstance(made, bytes) else int(said))


def test_every_name_the_pages_link_to_exists() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_make_target_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for name in re.findall(r"^(?:`|)make (\w+)", page.read_text(), re.MULTILINE):
            assert name in targets, f"{page.name} names make {name}"


def test_the_example_of_two_processes_runs() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "two_processes.py")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert "damage: none" in ran.stdout
