"""Pages, proto comments and error messages use the words of the glossary, and none that it tells to avoid."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.pages import ROOT, is_ours, pages, prose_lines

GLOSSARY = ROOT / "deploy" / "docs" / "glossary.md"
SOURCES = ("services", "gateway", "pagantic_common", "deploy")
MAKERS_OF_FAILURES = {"failure_of", "Failure"}
# Words to avoid that have a meaning of their own in Python, SQL, protocols and their papers.
OF_CODE = {
    *("abandoned", "beat", "completion", "daemon", "exchange", "fault", "function call", "job", "leader", "llm"),
    *("notification", "passage", "poll", "speculative", "task"),
}
# Pronouns and clauses that stand for a thing with a name.
NAMELESS = re.compile(r"\b(tells? (of|how|what|whether|which)|that is none|are any|whose one|what of)\b")


class Text(NamedTuple):
    """A line that people read."""

    path: str
    line: int
    words: str


def read_avoided(glossary: str) -> dict[str, str]:
    """Return the word to use by each word to avoid; the last column of a table lists these, the first that one."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in glossary.splitlines() if line[:1] == "|"]
    entries = [row for row in rows if row[-1] and row[-1] != "avoid" and set(row[0]) != {"-"}]
    return {avoided.strip(): row[0] for row in entries for avoided in row[-1].split(",")}


def find_avoided(texts: Iterator[Text], avoided: dict[str, str]) -> list[str]:
    """Return a line for each use of a word to avoid: its file, its line, and the right word."""
    by_length = sorted(avoided, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, by_length))})(?:s|es)?(?![\w-])", re.IGNORECASE)
    return [
        f"{text.path}:{text.line}: write {avoided[match[1].lower()]!r}, not {match[0]!r}"
        for text in texts
        for match in pattern.finditer(text.words)
    ]


def page_texts() -> Iterator[Text]:
    for page in pages():
        if page != GLOSSARY:
            for number, line in prose_lines(page.read_text(encoding="utf-8")):
                yield Text(str(page.relative_to(ROOT)), number, line)


def proto_texts() -> Iterator[Text]:
    for path in sorted((ROOT / "proto" / "pagantic").rglob("*.proto")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            code, slashes, comment = line.partition("//")
            if slashes and '"' not in code:
                yield Text(str(path.relative_to(ROOT)), number, re.sub(r"`[^`]*`", "", comment))


def message_texts() -> Iterator[Text]:
    found = (path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
    for path in sorted(filter(is_ours, found)):
        for number, words in read_messages(path.read_text(encoding="utf-8")):
            yield Text(str(path.relative_to(ROOT)), number, words)


@cache
def code_texts() -> tuple[Text, ...]:
    """Return the docstrings and comments; migrations stay as they were made."""
    return tuple(_code_texts())


def _code_texts() -> Iterator[Text]:
    paths = (path for folder in SOURCES for path in (ROOT / folder).rglob("*.py") if "versions" not in path.parts)
    for path in sorted(filter(is_ours, paths)):
        source, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield Text(name, token.start[0], token.string)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
                yield Text(name, getattr(node, "lineno", 1), re.sub(r"`[^`]*`", "", text))


def read_messages(source: str) -> list[tuple[int, str]]:
    """Return the line and text of each string literal in what a source raises or makes a failure of."""
    tree = ast.walk(ast.parse(source))
    messages = [part for node in tree if _makes_failure(node) for part in ast.walk(node) if _is_text(part)]
    return sorted({(part.lineno, part.value) for part in messages})


def _makes_failure(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in MAKERS_OF_FAILURES
    return isinstance(node, ast.Raise) and node.exc is not None


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
AVOIDED = read_avoided(GLOSSARY.read_text(encoding="utf-8"))


@pytest.mark.parametrize("texts", [page_texts, proto_texts, message_texts])
def test_texts_use_the_words_of_the_glossary(texts):
    wrong = find_avoided(texts(), AVOIDED)
    assert not wrong, "\n".join(wrong)


def test_docstrings_and_comments_use_the_words_of_the_glossary():
    avoided = {word: right for word, right in AVOIDED.items() if word not in OF_CODE}
    wrong = find_avoided(code_texts(), avoided)
    wrong += [
        f"{text.path}:{text.line}: {found[0]!r}" for text in code_texts() if (found := NAMELESS.search(text.words))
    ]
    assert not wrong, "\n".join(wrong)


def test_a_docstring_begins_with_the_thing_or_the_verb():
    clause = re.compile(r"(What|Who|Whose|Whom|Where|How|Tell|Tells)\b")
    assert [f"{text.path}:{text.line}: {text.words}" for text in code_texts() if clause.match(text.words)] == []


def test_a_proto_comment_begins_with_the_thing_not_with_a_clause_about_it():
    clause = re.compile(r" (What|Where|How|Why|Which|Who|Whose|Anything|Something)\b")
    assert [f"{text.path}:{text.line}:{text.words}" for text in proto_texts() if clause.match(text.words)] == []


def test_each_kind_of_text_is_found():
    assert {Path(text.path).name for text in page_texts()} > {"README.md", "CHANGELOG.md", "settings.md"}
    assert any("Execute" in text.words or "request" in text.words for text in proto_texts())
    assert any("does not match" in text.words for text in message_texts())


def test_the_glossary_gives_no_word_two_meanings():
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines()
    words = [line.strip("|").split("|")[0].strip() for line in lines if line.count("|") == 4 and "---" not in line]
    words = [word for word in words if word != "word"]
    assert len(words) == len(set(words)) > 40
    assert not set(words) & set(AVOIDED)


def test_a_word_to_avoid_is_reported_with_its_place_and_the_right_word():
    avoided = read_avoided("| word | meaning | avoid |\n|---|---|---|\n| setting | a variable | knob, tunable |")
    texts = [Text("a.md", 3, "Two Knobs."), Text("b.md", 4, "a doorknob; knob-like")]
    assert find_avoided(iter(texts), avoided) == ["a.md:3: write 'setting', not 'Knobs'"]


def test_messages_are_what_is_raised_or_fails():
    source = 'raise Wrong(f"a {x} b")\nfailure_of(Code.X, "c")\nprint("d")\ncodes.failure_of("e")\n'
    assert read_messages(source) == [(1, " b"), (1, "a "), (2, "c"), (4, "e")]
