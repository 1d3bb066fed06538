"""Scored pieces of text. Scores compare only within one score_kind, and a higher one is better."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """A scored piece of text."""

    id: str
    content: str
    source: str
    score: float = 0.0
    score_kind: str = ""
    metadata_json: str = ""
