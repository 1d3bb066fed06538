"""Reads the Cranfield collection: abstracts of aeronautics, questions, and which abstracts answer which question."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path


def documents() -> dict[str, str]:
    """Return the abstracts that have a text, by their numbers."""
    found = re.findall(r"<docno>(\d+)</docno>.*?<text>(.*?)</text>", _read("cran.all.1400.xml"), re.DOTALL)
    return {number: html.unescape(body).strip() for number, body in found if body.strip()}


def queries() -> dict[str, str]:
    """Return the questions by their place from 1, by which the judgements name them."""
    found = re.findall(r"<title>(.*?)</title>", _read("cran.qry.xml"), re.DOTALL)
    return {str(place): " ".join(html.unescape(title).split()) for place, title in enumerate(found, 1)}


def judgements() -> list[tuple[str, str, int]]:
    """Return query, document, and 1 where the document is relevant."""
    rows = (line.split() for line in _read("cranqrel.trec.txt").splitlines())
    return [(query, document, int(relevance)) for query, _, document, relevance in rows]


def _read(name: str) -> str:
    return (Path(os.environ.get("PAGANTIC_SUITES", "")) / "cranfield" / name).read_text(encoding="utf-8")
