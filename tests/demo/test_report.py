"""The report needs nothing but itself, and what is printed says the same."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from penstock.demo.report import page
from penstock.demo.words import told
from tests.demo.results import result

VOID = {"meta"}


class Nesting(HTMLParser):
    """Every element is closed where it was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def html(tmp_path: Path) -> str:
    return page(result(tmp_path))


def test_it_is_well_formed(html: str) -> None:
    nesting = Nesting()
    nesting.feed(html)
    assert nesting.open == []
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(drawings) == 7  # the time line, and six symbols
    for drawing in drawings:
        assert ElementTree.fromstring(drawing).attrib["aria-label"]


def test_it_needs_nothing_but_itself(html: str) -> None:
    assert re.findall(r"<(script|link|img|iframe|object)\b", html) == []
    assert re.findall(r"\b(src|href)=|url\(|@import", html) == []
    assert set(re.findall(r"https?://[^\"' ]+", html)) == {"http://www.w3.org/2000/svg"}  # a name, which nobody fetches
    assert "prefers-color-scheme: dark" in html


def test_numbers_in_drawings_are_numbers(html: str) -> None:
    assert "nan" not in html
    assert "inf" not in re.sub(r"[a-z]*inf[a-z]+", "", html)


def test_page_and_lines_say_what_holds(html: str, tmp_path: Path) -> None:
    assert "The proof holds" in html
    good = result(tmp_path)
    lines = "\n".join(told(good))
    assert "the proof holds: every record exactly once" in lines
    assert re.search(r"^dead letters +(\d+) +\1 +0 +0 +0$", lines, re.MULTILINE)
    lost = replace(good.proof.tallies[0], lost=3)
    bad = replace(good, proof=replace(good.proof, tallies=(lost,), differences=("<b> is lost",)))
    assert "The proof does not hold" in page(bad)
    assert "&lt;b&gt; is lost" in page(bad)
    assert "THE PROOF DOES NOT HOLD" in "\n".join(told(bad))
