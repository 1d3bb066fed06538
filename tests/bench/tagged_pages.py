"""Pages that one person described and tagged over twenty years, in the data of the PyPI package cherche (semanlink).

A query is the name of a tag, and the pages with that tag answer it. The names are short and often do not stand in the
pages. Papers of arXiv are one collection, all other pages are another.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from ir_measures import Qrel

from tests.bench.cranfield import Judged

LEAST_CHARS = 120  # of a page that is worth a search
TAGGED = range(3, 51)  # pages of a tag that is a query


def tagged_pages(folder: Path, *, of_papers: bool) -> Judged:
    """Return the papers or the other pages of the package's folder data/semanlink."""
    names = {tag: _first(about["prefLabel"]) for tag, about in _read(folder / "tags.json").items()}
    documents: dict[str, str] = {}
    tagged: defaultdict[str, set[str]] = defaultdict(set)
    for page in _read(folder / ("arxiv.json" if of_papers else "docs.json")):
        text = _text_of(page)
        if len(text) < LEAST_CHARS or (not of_papers and page["arxiv_summary"]):
            continue
        documents[page["document"]] = text
        for tag in page["tag"]:
            tagged[tag].add(page["document"])
    wanted = {tag: pages for tag, pages in tagged.items() if names.get(tag) and len(pages) in TAGGED}
    numbers = {tag: str(number) for number, tag in enumerate(sorted(wanted), 1)}
    judgements = [Qrel(numbers[tag], page, 1) for tag, pages in wanted.items() for page in pages]
    return Judged(documents, {number: names[tag] for tag, number in numbers.items()}, judgements)


def _text_of(page: dict[str, Any]) -> str:
    parts = (page["arxiv_title"] or page["title"], page["arxiv_summary"] or page["comment"])
    return " ".join(re.sub(r"https?://\S+", " ", " ".join(map(_first, parts))).split())


def _first(value: Any) -> str:
    if isinstance(value, list):
        value = next(iter(value), "")
    return str(value or "")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
