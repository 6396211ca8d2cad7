"""Every Python example in the README, in docs/ and in docstrings runs; every file and make target they name exists. The reference of
commands is what the commands say, and the site has every page.

The bytes that docs/formats.md gives for a Python expression are those it makes. (Its table of frames is read by the tests of
the kernels.)
"""

import doctest
import importlib
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import penstock
from penstock.formats import channel, journal, topic
from penstock.kernel import encode, encode_many
from tests.support import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


WALKED = [page for page in PAGES if "```sh\n" in page.read_text()]  # they are gone through from top to bottom


def examples() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        if page in WALKED:
            continue
        for i, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
            found.append((f"{page.name}:{i}", block))
    return found


def on_spark(code: str) -> bool:
    return "penstock.spark import" in code or "pyspark" in code


PLAIN = [e for e in examples() if ".follow()" not in e[1] and not on_spark(e[1])]


@pytest.mark.parametrize(("where", "code"), PLAIN, ids=lambda v: v[:20])
def test_example_runs(where: str, code: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, f"{where}\n{ran.stderr}"


def test_examples_on_spark_run(tmp_path: Path) -> None:
    """One after the other in one process: Java takes longer to start than any of them to run."""
    lines = [
        f"exec(compile({code!r}, {where!r}, 'exec'), {{'__name__': '__main__'}})"
        for where, code in examples()
        if on_spark(code)
    ]
    assert lines
    command = [sys.executable, "-W", "error", "-c", "\n".join(lines)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr


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


def steps(page: Path) -> Iterator[tuple[str, str, str]]:
    """What a reader of a page does in turn: the language, the block, and what it must show. Blocks of Python that go on with the Spark
    session of the one before are one step with it."""
    blocks = re.findall(r"```(sh|python|text)\n(.*?)```", page.read_text(), re.DOTALL)
    made: list[list[str]] = []
    for language, block in blocks:
        if language == "text":
            made[-1][2] += block
        elif language == "python" and made and made[-1][0] == "python" and "spark = session(" in made[-1][1]:
            made[-1][1] += block
        else:
            made.append([language, block, ""])
    return ((language, block, shown) for language, block, shown in made)


@pytest.mark.parametrize("page", WALKED, ids=lambda page: page.name)
def test_a_page_can_be_followed_word_by_word(page: Path, tmp_path: Path) -> None:
    """In one directory. A command that follows a log runs beside the next step, must show what that has, and ends by Ctrl-C."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "error"}
    follower: subprocess.Popen[str] | None = None
    with ExitStack() as ended:
        for language, block, shown in steps(page):
            if language == "sh" and block.rstrip().endswith(" -f"):
                command = ["sh", "-c", f"exec {block}"]
                follower = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
                ended.enter_context(follower)
                ended.callback(follower.kill)
                continue
            command = [sys.executable, "-c", block] if language == "python" else ["sh", "-eu", "-c", block]
            ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
            assert ran.returncode == 0, f"{block}\n{ran.stdout}\n{ran.stderr}"
            told = ran.stdout if follower is None else followed(follower, shown.splitlines()[-1])
            follower = None
            for line in shown.splitlines():
                assert line in told, block


def followed(follower: subprocess.Popen[str], last: str) -> str:
    """What one that follows shows up to a line, after which it is told to end."""
    assert follower.stdout is not None
    patience = threading.Timer(60, follower.kill)
    patience.start()
    told = ""
    for line in follower.stdout:
        told += line
        if last in line:
            break
    patience.cancel()
    follower.send_signal(signal.SIGINT)
    assert follower.wait(30) == 0, told
    return told


SOURCE = ROOT / "src"
MODULES = [p.relative_to(SOURCE).with_suffix("") for p in sorted(SOURCE.rglob("*.py")) if ">>> " in p.read_text()]


@pytest.mark.parametrize("module", [".".join(path.parts) for path in MODULES])
def test_docstring_examples_run(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # what they leave there goes with the test
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


def anchors(page: Path) -> set[str]:
    """What a link may name of a page: its headings, as the site and others spell them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_name_the_pages_link_to_exists() -> None:
    for page in PAGES:
        for target, _, heading in (link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", page.read_text())):
            found = page.parent / target if target else page
            assert found.exists(), f"{page.name} links to {target}"
            assert not heading or heading in anchors(found), f"{page.name} links to {target}#{heading}"


def test_every_file_of_the_repository_that_the_pages_name_exists() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:src|tests|tools|examples|bench|docs)/[\w./*-]+)`", page.read_text()):
            assert list(ROOT.glob(name.rstrip("/"))), f"{page.name} names {name}"


def test_the_site_has_every_page_and_no_page_leads_out_of_it() -> None:
    """A link to anything but a page would be a warning of the build, which ends it."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = {page.name for page in PAGES if page.parent.name == "docs"}
    assert sorted(re.findall(r"[\w-]+\.md", nav)) == sorted(pages)
    for page in (ROOT / "docs").glob("*.md"):
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            assert link.startswith("#") or link.partition("#")[0] in pages, f"{page.name} links to {link}"


def test_the_reference_of_commands_is_what_the_commands_say() -> None:
    written = runpy.run_path(str(ROOT / "tools" / "gen_cli.py"))["page"]()
    assert (ROOT / "docs" / "cli.md").read_text() == written, "run python tools/gen_cli.py"


def test_the_reference_is_what_the_package_says() -> None:
    written = runpy.run_path(str(ROOT / "tools" / "gen_reference.py"))["page"]()
    assert (ROOT / "docs" / "reference.md").read_text() == written, "run python tools/gen_reference.py"


def test_the_page_of_errors_has_each_with_its_kind() -> None:
    said = re.findall(r"^\| `(\w+)`(?: \(a `(\w+)`\))? \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    kinds = [kind for kind in vars(penstock.errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    of = {kind.__name__: kind.__bases__[0].__name__ for kind in kinds}
    assert sorted(said) == sorted((n, "" if kind in ("PenstockError", "Exception") else kind) for n, kind in of.items())
    assert of.keys() <= set(penstock.__all__)


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
