"""Shows the ingest of files in a notebook: as a bar while it runs, and as counts and failures afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final

from pagantic.context.v1 import file_pb2
from pagantic_common.client.descriptions import count_of, error_code_name
from pagantic_common.client.notebook.live import LiveOutput
from pagantic_common.client.notebook.markup import inline, page, table
from pagantic_common.client.sources.files import find_files

_SHOWN_FAILURES: Final = 20


class FileProgress:
    """Shows the number of finished files of an ingest in a notebook.

    Use it as `on_file=FileProgress(paths)`, with the paths of the ingest.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self._total = len(find_files(paths))
        self._done = self._failed = 0
        self._output = LiveOutput()
        self._draw()

    def __call__(self, result: file_pb2.FileResult) -> None:
        """Count a file and update the bar."""
        self._done += 1
        self._failed += result.outcome == file_pb2.FILE_OUTCOME_FAILED
        if self._output.is_due() or self._done >= self._total:
            self._draw()

    def _draw(self) -> None:
        words = f"{self._done} of {count_of(self._total, 'file')}, {self._failed} failed"
        drawn = f'<progress max="{self._total}" value="{self._done}" aria-label="files"></progress> {words}'
        self._output.draw(words, page([drawn]))


def ingested_bundle(summary: file_pb2.FilesSummary, failed: Sequence[file_pb2.FileResult]) -> dict[str, str]:
    """Return the counts and the failures of an ingest as text and as HTML."""
    kept = summary.collection
    counts = f"{summary.added} added, {summary.replaced} replaced, {summary.unchanged} unchanged, "
    counts += (
        f"{len(failed)} failed; now {count_of(kept.document_count, 'document')}, {count_of(kept.chunk_count, 'chunk')}"
    )
    rows = [
        f"<tr><td>{inline(failure.source)}</td><td><strong>{error_code_name(failure.error.code)}</strong></td>"
        f"<td>{inline(failure.error.message)}</td></tr>"
        for failure in failed[:_SHOWN_FAILURES]
    ]
    parts = [f'<div class="head">{inline(kept.name)}</div><div>{counts}</div>', table(rows)]
    if len(failed) > _SHOWN_FAILURES:
        parts.append(f'<div class="less">{len(failed) - _SHOWN_FAILURES} more failed</div>')
    return {"text/plain": counts, "text/html": page(parts)}
