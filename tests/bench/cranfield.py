"""The Cranfield collection in the folder of test suites: abstracts, questions, and which abstracts answer which."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ir_measures import Qrel, read_trec_qrels


@dataclass(frozen=True, slots=True)
class Judged:
    """Texts and queries by their names, and how well texts answer queries."""

    documents: Mapping[str, str]
    queries: Mapping[str, str]
    judgements: Sequence[Qrel]


def cranfield_folder() -> Path:
    """Return the folder of the collection below PAGANTIC_SUITES."""
    return Path(os.environ.get("PAGANTIC_SUITES", "../shared/suites")) / "cranfield"


def documents() -> dict[str, str]:
    """Return the titles and abstracts by their numbers."""
    text = (cranfield_folder() / "cran.all.1400.xml").read_text(encoding="utf-8")
    found = re.findall(r"<docno>(\d+)</docno>\s*<title>(.*?)</title>.*?<text>(.*?)</text>", text, re.DOTALL)
    return {
        number: html.unescape(f"{title.strip()}\n\n{body.strip()}") for number, title, body in found if body.strip()
    }


def queries() -> dict[str, str]:
    """Return the questions by their places in the file, from 1: the judgements number them so."""
    text = (cranfield_folder() / "cran.qry.xml").read_text(encoding="utf-8")
    titles = re.findall(r"<title>(.*?)</title>", text, re.DOTALL)
    return {str(number): " ".join(html.unescape(title).split()) for number, title in enumerate(titles, 1)}


def judgements() -> list[Qrel]:
    """Return how well abstracts answer questions."""
    return list(read_trec_qrels(str(cranfield_folder() / "cranqrel.trec.txt")))


def cranfield() -> Judged:
    """Return the collection."""
    return Judged(documents(), queries(), judgements())
