"""Sends the bytes of files with IngestFiles, and reads the result of each file."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import file_pb2
from pagantic_common.codec.errors import failure_to_proto
from pagantic_common.domain.errors import DeadlineExceeded, ErrorCode, failure_of

PART_BYTES = 256 * 1024

IngestCall = Callable[[AsyncIterator[pb.IngestFilesRequest]], AsyncGenerator[pb.IngestFilesResponse, None]]
OnFile = Callable[[file_pb2.FileResult], None]


@dataclass(frozen=True, slots=True)
class IngestedFiles:
    """The counts of an ingest, and the results of failed files, including unsent files."""

    summary: file_pb2.FilesSummary
    failed: Sequence[file_pb2.FileResult]

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        from pagantic_common.client.sources.progress import ingested_bundle  # noqa: PLC0415 - a notebook alone asks for it

        return ingested_bundle(self.summary, self.failed)


async def upload_files(
    call: IngestCall,
    collection: str,
    files: Sequence[Path],
    *,
    timeout_s: float,
    on_file: OnFile | None = None,
) -> IngestedFiles:
    """Send files to a collection, one after another. An unreadable file does not stop the ingest.

    Args:
        call: Calls IngestFiles with a stream of requests.
        collection: Name of the collection.
        files: The files; the path of each is the source of its document.
        timeout_s: Maximum time for a file, in seconds. Raises DeadlineExceeded if a file takes longer.
        on_file: Called with the result of each file, outside the event loop's thread, so that it may block and use a
            Client.

    Raises OSError if a file cannot be read to its end. The preceding files are stored.
    """
    upload = _Upload(collection, files, on_file)
    return IngestedFiles(await upload.send(call, timeout_s), upload.failed)


async def upload_parts(
    call: IngestCall, collection: str, header: file_pb2.FileHeader, parts: AsyncIterable[bytes], *, timeout_s: float
) -> file_pb2.FileResult:
    """Send a file that arrives in parts to a collection, and return its result.

    Raises DeadlineExceeded if the whole call takes longer than `timeout_s`.
    """

    async def requests() -> AsyncIterator[pb.IngestFilesRequest]:
        yield pb.IngestFilesRequest(collection=collection)
        yield pb.IngestFilesRequest(header=header)
        async for part in parts:
            for start in range(0, len(part), PART_BYTES):
                yield pb.IngestFilesRequest(content=file_pb2.FilePart(data=part[start : start + PART_BYTES]))
        yield pb.IngestFilesRequest(content=file_pb2.FilePart(is_last=True))

    try:
        async with asyncio.timeout(timeout_s):
            return await _only_result(call(requests()))
    except TimeoutError:
        raise DeadlineExceeded(f"the file was not stored within {timeout_s:g} s") from None


async def _only_result(incoming: AsyncGenerator[pb.IngestFilesResponse, None]) -> file_pb2.FileResult:
    result = file_pb2.FileResult()
    async with aclosing(incoming) as responses:
        async for response in responses:
            if response.HasField("file"):
                result = response.file
    return result


class _Upload:
    def __init__(self, collection: str, files: Sequence[Path], on_file: OnFile | None) -> None:
        self._collection = collection
        self._files = files
        self._on_file = on_file
        self._one_call = asyncio.Lock()
        self._broken: OSError | None = None
        # A thread may open the next file while `_close` runs. The lock ensures that the file is always closed.
        self._file: IO[bytes] | None = None
        self._is_ended = False
        self._file_lock = threading.Lock()
        self.failed: list[file_pb2.FileResult] = []

    async def send(self, call: IngestCall, timeout_s: float) -> file_pb2.FilesSummary:
        try:
            async with aclosing(call(self._requests())) as responses:
                while not (response := await self._next_of(responses, timeout_s)).HasField("summary"):
                    await self._note(response.file)
                return response.summary
        finally:
            self._close()

    async def _note(self, result: file_pb2.FileResult) -> None:
        if result.outcome == file_pb2.FILE_OUTCOME_FAILED:
            self.failed.append(result)
        if self._on_file is not None:
            async with self._one_call:
                await asyncio.to_thread(self._on_file, result)

    async def _next_of(
        self, responses: AsyncIterator[pb.IngestFilesResponse], timeout_s: float
    ) -> pb.IngestFilesResponse:
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(responses)
        except TimeoutError:
            raise DeadlineExceeded(f"no file was stored within {timeout_s:g} s") from None
        finally:
            if self._broken is not None:
                raise self._broken

    async def _requests(self) -> AsyncIterator[pb.IngestFilesRequest]:
        yield pb.IngestFilesRequest(collection=self._collection)
        for path in self._files:
            try:
                header = file_pb2.FileHeader(source=path.as_posix())
                file = await asyncio.to_thread(self._open, path)
            except (OSError, UnicodeEncodeError) as error:
                await self._note(_failed(path, error))
                continue
            with file:
                yield pb.IngestFilesRequest(header=header)
                async for part in self._parts_of(path, file):
                    yield pb.IngestFilesRequest(content=part)
            if self._broken:
                return

    def _open(self, path: Path) -> IO[bytes]:
        file = path.open("rb")
        with self._file_lock:
            self._file = file
            if self._is_ended:  # The call was refused while the file was opened.
                file.close()
        return file

    def _close(self) -> None:
        """Close the file that is being sent, because gRPC does not close the iterator of a failed call."""
        with self._file_lock:
            self._is_ended = True
            if self._file is not None:
                self._file.close()

    async def _parts_of(self, path: Path, file: IO[bytes]) -> AsyncIterator[file_pb2.FilePart]:
        """Yield the bytes of a file, then an empty last part. After a read error, the last part is omitted."""
        try:
            while data := await asyncio.to_thread(file.read, PART_BYTES):
                yield file_pb2.FilePart(data=data)
        except OSError as error:
            error.filename = str(path)
            self._broken = error
            return
        yield file_pb2.FilePart(is_last=True)


def _failed(path: Path, error: OSError | UnicodeEncodeError) -> file_pb2.FileResult:
    """Return the result of a file that was not sent."""
    source = path.as_posix().encode(errors="backslashreplace").decode()
    reason = "its name is not UTF-8: rename it"
    if isinstance(error, OSError):
        reason = reason_of(error)
    failure = failure_of(ErrorCode.CONFIG_INVALID, f"the file cannot be sent: {reason}")
    outcome = file_pb2.FILE_OUTCOME_FAILED
    return file_pb2.FileResult(source=source, outcome=outcome, error=failure_to_proto(failure))


def reason_of(error: OSError) -> str:
    """Return the reason why a file cannot be read, in lower case."""
    return (error.strerror or str(error)).lower()
