"""The command that stores files of any format as documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf import json_format
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from gateway.cli import options
from gateway.cli.completion import names_of
from gateway.cli.failures import EXIT_PARTLY
from gateway.cli.output import UsageError, note, reporting_errors, say, say_json
from gateway.cli.retrieval.documents import Address, ContextCalls, call_context
from pagantic.context.v1 import file_pb2
from pagantic_common.client.descriptions import count_of
from pagantic_common.client.sources.files import find_files, size_of
from pagantic_common.client.sources.upload import IngestedFiles, reason_of, upload_files
from pagantic_common.codec.errors import error_code_from_proto
from pagantic_common.domain.text.json_text import dump_json


def ingest(
    collection: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTION", help="Collection; made if it does not exist.", autocompletion=names_of("collections")
        ),
    ],
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="Files, and folders of them: text, Markdown, HTML, PDF, docx, pptx, xlsx, JSON, CSV, and each of them "
            "as .gz; a path names its document.",
        ),
    ],
    *,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.001, help="Longest time for one file.", show_default=True)
    ] = options.TIMEOUT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts and the failures as JSON.")] = False,
    address: Address = "",
) -> None:
    """Store files, so that requests can retrieve from them."""
    with reporting_errors():
        try:
            files = find_files(paths)
            if not files:
                raise UsageError("the folders have no files")
            with _showing_progress(files) as shown:
                ingested = call_context(address, timeout, lambda context: _upload(context, collection, files, shown))
        except OSError as error:
            raise UsageError(f"cannot read {error.filename!r}: {reason_of(error)}") from None
    if as_json:
        failures = [json_format.MessageToDict(failure, preserving_proto_field_name=True) for failure in ingested.failed]
        counts = json_format.MessageToDict(ingested.summary, preserving_proto_field_name=True)
        say_json(dump_json({**counts, "failures": failures}))
    else:
        _say_summary(collection, ingested.summary, ingested.failed)
    if ingested.failed:
        raise typer.Exit(EXIT_PARTLY)


async def _upload(context: ContextCalls, collection: str, files: Sequence[Path], shown: _Shown) -> IngestedFiles:
    call = partial(context.call_stream, context.stub.IngestFiles)
    return await upload_files(call, collection, files, timeout_s=context.timeout_s, on_file=shown.advance)


def _say_summary(collection: str, summary: file_pb2.FilesSummary, failed: Sequence[file_pb2.FileResult]) -> None:
    for failure in failed:
        code = error_code_from_proto(failure.error.code)
        reason = f"{code.value}: {failure.error.message}" if code is not None else failure.error.message
        note(f"{failure.source}: {reason}")
    kept = summary.collection
    parts = f"{summary.added} added, {summary.replaced} replaced, {summary.unchanged} unchanged"
    if failed:
        parts += f", {len(failed)} failed"
    now = f"{count_of(kept.document_count, 'document')}, {count_of(kept.chunk_count, 'chunk')}"
    say(f"{collection}: {parts}; now {now}")


class _Shown:
    """The progress bar on a terminal."""

    def __init__(self, progress: Progress, task: TaskID, total: int) -> None:
        self._progress = progress
        self._task = task
        self._total = total
        self._done = self._failed = 0

    def advance(self, result: file_pb2.FileResult) -> None:
        """Count another finished file in the progress bar."""
        self._done += 1
        self._failed += result.outcome == file_pb2.FILE_OUTCOME_FAILED
        words = f"{self._done} of {count_of(self._total, 'file')}, {self._failed} failed"
        self._progress.update(self._task, description=words, advance=size_of(Path(result.source)))


@contextmanager
def _showing_progress(files: Sequence[Path]) -> Iterator[_Shown]:
    """Show a progress bar on a terminal, and show nothing elsewhere."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(count_of(len(files), "file"), total=sum(map(size_of, files)))
        yield _Shown(progress, task, len(files))
