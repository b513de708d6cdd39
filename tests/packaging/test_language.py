"""Rules of language: docs have short sentences, docstrings are sentences, and words of a private dialect are banned."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in {"wire.md"}),
]
AROUND = ("tests", "benchmarks", "examples", "frontend")
"""Folders whose words are checked, and whose docstrings are not."""
SOURCES = sorted([*(ROOT / "agent").rglob("*.py"), *(ROOT / "backend").rglob("*.py")])

LONGEST_WORDS = 30
MEDIAN_WORDS = 14
LONG_SHARE = 0.06

BANNED = re.compile(
    r"\b(reckon(?:ed|s|ing)?|lets? go of|letting go|is told|are told|was told|were told|told of|tells of|stands? beside"
    r"|stands? there|whose it is|what is held|of no use|gets? through|anew|is heard|are heard|was heard|the house"
    r"|drawn out|(?:a|one|each|next|every) look|looked at"
    r"|goes with the|so many|come to lie|came to lie|takings|onlookers|belongings|errands|come by)\b",
    re.IGNORECASE,
)


def sentences(text: str) -> Iterator[str]:
    """Sentences of Markdown prose. Tables, headings, code and comments are left out."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.splitlines() if line.strip() and not re.match(r"\s*[|#!]|    ", line)]
        prose = " ".join(lines)
        is_list = re.match(r"\s*([-*]|\d+\.)\s", prose) is not None
        for part in re.split(r"(?:^|\s)(?:[-*]|\d+\.)\s+(?=\S)", prose) if is_list else [prose]:
            for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z*`\"\[(])", part):
                if len(sentence.split()) > 2:
                    yield sentence


def lengths(text: str) -> list[int]:
    return [len(sentence.split()) for sentence in sentences(text)]


def test_lengths_are_counted() -> None:
    text = "# Title words here now\n\nOne two three. Four five six seven.\n\n| a table row of words |\n\n- An item of five words.\n"
    assert lengths(text) == [3, 4, 5]


def test_docs_have_short_sentences() -> None:
    found = [length for path in DOCS for length in lengths(path.read_text())]
    assert statistics.median(found) <= MEDIAN_WORDS
    assert sum(length > LONGEST_WORDS for length in found) / len(found) <= LONG_SHARE


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_no_page_has_many_long_sentences(path: Path) -> None:
    long = [sentence for sentence in sentences(path.read_text()) if len(sentence.split()) > LONGEST_WORDS]
    assert len(long) <= max(1, LONG_SHARE * len(lengths(path.read_text()))), "\n".join(long)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_docs_have_no_banned_words(path: Path) -> None:
    found = [match.group() for match in BANNED.finditer(path.read_text())]
    assert not found


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Line, text, and whether it documents an attribute."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, here in zip([None, *body], body, strict=False):
            if (
                isinstance(here, ast.Expr)
                and isinstance(here.value, ast.Constant)
                and isinstance(here.value.value, str)
            ):
                of_attribute = isinstance(before, ast.Assign | ast.AnnAssign)
                if of_attribute or (before is None and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)):
                    yield here.lineno, here.value.value, of_attribute


def is_fragment(text: str) -> bool:
    """A docstring in mid-sentence begins with a small letter. Names of code may."""
    return re.match(r"\s*[a-z](?!\w*[_.(])", text) is not None


def faults(path: Path) -> list[str]:
    """Docstrings in mid-sentence, and banned words."""
    text = path.read_text()
    found = [
        f"{line}: {docstring.splitlines()[0]}"
        for line, docstring, _ in docstrings(ast.parse(text))
        if is_fragment(docstring)
    ]
    lines = enumerate(text.splitlines(), 1)
    return found + [f"{number}: {line.strip()[:120]}" for number, line in lines if BANNED.search(line)]


def test_source_follows_the_rules_of_language() -> None:
    found = [f"{path.relative_to(ROOT)}:{fault}" for path in SOURCES for fault in faults(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", AROUND)
def test_other_files_have_no_banned_words(folder: str) -> None:
    """In a folder named ``results`` are recorded texts. This file has the words themselves."""
    paths = [path for suffix in ("py", "md", "js") for path in (ROOT / folder).rglob(f"*.{suffix}")]
    read = [path for path in paths if path.name != Path(__file__).name and "results" not in path.parts]
    assert read
    lines = [(path, number, line) for path in read for number, line in enumerate(path.read_text().splitlines(), 1)]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path, number, line in lines
        if BANNED.search(line)
    ]
    assert not found, "\n".join(found)


def test_a_fragment_and_a_banned_word_are_found() -> None:
    assert is_fragment("of the batch whose forward began last") and not is_fragment("Batch size of the last forward.")
    assert not is_fragment("vramscope_server is a package.") and BANNED.search("it is told in words")
