"""Every Python example in the README and in docs/ runs, and every file and make target they name exists."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import penstock

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


def test_every_name_the_pages_link_to_exists() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_make_target_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for name in re.findall(r"^(?:`|)make (\w+)", page.read_text(), re.MULTILINE):
            assert name in targets, f"{page.name} names make {name}"


def test_the_demo_runs() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "two_processes.py")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert "damage: none" in ran.stdout
