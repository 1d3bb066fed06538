"""The command that stores files as documents, whatever their format."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import typer
from google.protobuf import json_format
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from gateway.cli import options
from gateway.cli.failures import EXIT_PARTLY
from gateway.cli.output import UsageError, note, reporting_errors, say, say_json
from gateway.cli.retrieval.documents import Address, ContextCalls, call_context
from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import file_pb2
from pagantic_common.client.descriptions import count_of
from pagantic_common.codec.errors import error_code_from_proto, failure_to_proto
from pagantic_common.domain.errors import DeadlineExceeded, ErrorCode, failure_of
from pagantic_common.domain.text.json_text import dump_json

PART_BYTES = 256 * 1024


def ingest(
    collection: Annotated[str, typer.Argument(metavar="COLLECTION", help="Collection; made if it does not exist.")],
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
        files = _find_files(paths)
        if not files:
            raise UsageError("the folders have no files")
        upload = _Upload(collection, files)
        with _showing_progress(files) as progress:
            summary = call_context(address, timeout, lambda context: upload.send(context, progress))
    if as_json:
        failures = [json_format.MessageToDict(one, preserving_proto_field_name=True) for one in upload.failed]
        counts = json_format.MessageToDict(summary, preserving_proto_field_name=True)
        say_json(dump_json({**counts, "failures": failures}))
    else:
        _say_summary(summary, upload.failed)
    if upload.failed:
        raise typer.Exit(EXIT_PARTLY)


def _say_summary(summary: file_pb2.FilesSummary, failed: Sequence[file_pb2.FileResult]) -> None:
    for one in failed:
        code = error_code_from_proto(one.error.code)
        reason = f"{code.value}: {one.error.message}" if code is not None else one.error.message
        note(f"{one.source}: {reason}")
    kept = summary.collection
    parts = f"{summary.added} added, {summary.replaced} replaced, {summary.unchanged} unchanged"
    if failed:
        parts += f", {len(failed)} failed"
    say(f"{kept.name}: {parts}; now {count_of(kept.document_count, 'document')}, {count_of(kept.chunk_count, 'chunk')}")


@dataclass(frozen=True, slots=True)
class _Shown:
    """The bar on a terminal."""

    progress: Progress
    task: TaskID
    total: int

    def advance(self, done: int, failed: int, size_bytes: int) -> None:
        """Show that another file is done."""
        words = f"{done} of {count_of(self.total, 'file')}, {failed} failed"
        self.progress.update(self.task, description=words, advance=size_bytes)


@contextmanager
def _showing_progress(files: Sequence[Path]) -> Iterator[_Shown]:
    """Show a bar on a terminal; nothing elsewhere."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(count_of(len(files), "file"), total=sum(map(_size_of, files)))
        yield _Shown(progress, task, len(files))


class _Upload:
    """Files on their way to a collection, and those that failed."""

    def __init__(self, collection: str, files: Sequence[Path]) -> None:
        self._collection = collection
        self._files = files
        self._broken = ""
        self.failed: list[file_pb2.FileResult] = []

    async def send(self, context: ContextCalls, shown: _Shown) -> file_pb2.FilesSummary:
        """Send the files and return the counts; raises DeadlineExceeded when one takes too long."""
        done = 0
        async with aclosing(context.call_stream(context.stub.IngestFiles, self._requests())) as responses:
            while True:
                response = await self._next_of(responses, context.timeout_s)
                if response.HasField("summary"):
                    return response.summary
                done += 1
                if response.file.outcome == file_pb2.FILE_OUTCOME_FAILED:
                    self.failed.append(response.file)
                shown.advance(done, len(self.failed), _size_of(Path(response.file.source)))

    async def _next_of(
        self, responses: AsyncIterator[pb.IngestFilesResponse], timeout_s: float
    ) -> pb.IngestFilesResponse:
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(responses)
        except TimeoutError:
            raise DeadlineExceeded(f"no file was stored within {timeout_s:g} s") from None
        finally:
            if self._broken:
                raise UsageError(self._broken)

    async def _requests(self) -> AsyncIterator[pb.IngestFilesRequest]:
        yield pb.IngestFilesRequest(collection=self._collection)
        for path in self._files:
            try:
                file = await asyncio.to_thread(path.open, "rb")
                header = file_pb2.FileHeader(source=path.as_posix())
            except (OSError, UnicodeEncodeError) as error:
                self.failed.append(_failed(path, error))
                continue
            with file:
                yield pb.IngestFilesRequest(header=header)
                async for part in self._parts_of(path, file):
                    yield pb.IngestFilesRequest(content=part)
            if self._broken:
                return

    async def _parts_of(self, path: Path, file: IO[bytes]) -> AsyncIterator[file_pb2.FilePart]:
        """Yield the bytes of a file; the last part has none. A file that cannot be read to its end has no last part."""
        try:
            while data := await asyncio.to_thread(file.read, PART_BYTES):
                yield file_pb2.FilePart(data=data)
        except OSError as error:
            self._broken = f"cannot read {str(path)!r}: {_reason_of(error)}"
            return
        yield file_pb2.FilePart(is_last=True)


def _find_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files of paths and of the folders among them; raises UsageError for one that cannot be read."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += _files_in(path)
            continue
        try:
            path.open("rb").close()
        except OSError as error:
            raise UsageError(f"cannot read {str(path)!r}: {_reason_of(error)}") from None
        files.append(path)
    return files


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield a folder's files, those of its folders too, in the order of their names; hidden ones are left out."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and (Path(parent) / name).is_file():
                yield Path(parent) / name


def _failed(path: Path, error: OSError | UnicodeEncodeError) -> file_pb2.FileResult:
    """Return the result of a file that was not sent."""
    source = path.as_posix().encode(errors="backslashreplace").decode()
    failure = failure_of(ErrorCode.CONFIG_INVALID, f"the file cannot be sent: {_reason_of(error)}")
    outcome = file_pb2.FILE_OUTCOME_FAILED
    return file_pb2.FileResult(source=source, outcome=outcome, error=failure_to_proto(failure))


def _reason_of(error: OSError | UnicodeEncodeError) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "its name is not UTF-8: rename it"
    return (error.strerror or str(error)).lower()


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
