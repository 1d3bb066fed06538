"""Expands chunks by their surrounding text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagantic_common.domain.chunks import Chunk, ChunkLocation
from services.context.core.policy import Expansion
from services.context.ports import ChunkStore, StoredChunk

MAX_SECTION_CHARS = 8192


@dataclass(slots=True)
class _Window:
    """A part of a document around its best-ranked chunk."""

    best: StoredChunk
    start: int
    end: int
    first: StoredChunk


class Expanding:
    """Expands chunks to windows of their documents."""

    def __init__(self, store: ChunkStore) -> None:
        self._store = store

    async def expand(self, found: Sequence[StoredChunk], expansion: Expansion) -> list[Chunk]:
        """Return the chunks, best first, each with its surrounding text. Windows that touch are merged."""
        if not expansion.neighbours and not expansion.has_section:
            return [stored_chunk.chunk for stored_chunk in found]
        windows: list[_Window] = []
        for stored_chunk in found:
            window = await self._window_of(stored_chunk, expansion)
            if window is not None:
                _add(windows, window)
        spans = [(window.best.document_id, window.start, window.end) for window in windows]
        texts = await self._store.read_texts(spans)
        return [_to_chunk(window, text) for window, text in zip(windows, texts, strict=True) if text]

    async def _window_of(self, one: StoredChunk, expansion: Expansion) -> _Window | None:
        """Return the window of a chunk, or None if its document was replaced since the search."""
        reach = expansion.neighbours
        if expansion.has_section:
            reach = max(reach, _SECTION_REACH)
        around = await self._store.read_neighbours(one.document_id, one.position - reach, one.position + reach)
        if all(other.id != one.id for other in around):
            return None
        if expansion.has_section:
            around = _section_of(one, around, expansion.neighbours)
        start, end = _span_of(around[0])[0], _span_of(around[-1])[1]
        return _Window(one, start, end, around[0])


_SECTION_REACH = 40  # Number of chunks on each side that are examined for the section.


def _section_of(one: StoredChunk, around: Sequence[StoredChunk], neighbours: int) -> list[StoredChunk]:
    """Return the chunks of the section around a chunk, and at least `neighbours` chunks on each side."""
    center = next(at for at, other in enumerate(around) if other.id == one.id)
    first = last = center
    while first > 0 and (
        _is_near(one, around[first - 1], neighbours) or _is_section(one, around[first - 1], around[last])
    ):
        first -= 1
    while last + 1 < len(around) and (
        _is_near(one, around[last + 1], neighbours) or _is_section(one, around[first], around[last + 1])
    ):
        last += 1
    return list(around[first : last + 1])


def _is_near(one: StoredChunk, other: StoredChunk, neighbours: int) -> bool:
    return abs(other.position - one.position) <= neighbours


def _is_section(one: StoredChunk, first: StoredChunk, last: StoredChunk) -> bool:
    """Return whether a window from `first` to `last` stays within the section of `one` and the size limit."""
    heading = _heading_of(one)
    is_short = _span_of(last)[1] - _span_of(first)[0] <= MAX_SECTION_CHARS
    return is_short and _heading_of(first) == heading == _heading_of(last)


def _add(windows: list[_Window], window: _Window) -> None:
    """Add a window. It is merged with the windows that it touches; the best-ranked window remains."""
    touching = [
        existing
        for existing in windows
        if existing.best.document_id == window.best.document_id
        and window.start <= existing.end
        and existing.start <= window.end
    ]
    if not touching:
        windows.append(window)
        return
    joined = touching[0]
    for other in (*touching[1:], window):
        if other.start < joined.start:
            joined.start, joined.first = other.start, other.first
        joined.end = max(joined.end, other.end)
    for other in touching[1:]:
        windows.remove(other)


def _to_chunk(window: _Window, text: str) -> Chunk:
    first = window.first.chunk.location
    page, heading = 0, ""
    if first is not None:
        page, heading = first.page, first.heading
    return replace(window.best.chunk, content=text, location=ChunkLocation(window.start, window.end, page, heading))


def _span_of(one: StoredChunk) -> tuple[int, int]:
    if one.chunk.location is None:
        return 0, 0
    return one.chunk.location.start, one.chunk.location.end


def _heading_of(one: StoredChunk) -> str:
    if one.chunk.location is None:
        return ""
    return one.chunk.location.heading
