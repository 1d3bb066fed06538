"""Stores the documents of files one after another. An unreadable file does not affect other files."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator

from pagantic_common.domain.calls.principal import DEFAULT_TENANT
from pagantic_common.domain.chunks import parse_metadata
from pagantic_common.domain.errors import ErrorCode, Failure, InvalidRequest, PermissionDenied, Unavailable
from pagantic_common.telemetry.logging import get_logger
from services.context.app.library import Library
from services.context.core.document import CollectionKey, check_collection_name, check_source
from services.context.core.reading.files import (
    FileHeader,
    FileOutcome,
    FilePart,
    FileResult,
    FilesSummary,
    FolderSelection,
)
from services.context.core.reading.selection import is_selected
from services.context.ports import (
    FileReading,
    FolderListing,
    IncomingFile,
    IncomingFiles,
    IngestResult,
    ServedFolders,
    SourceStore,
)

log = get_logger(__name__)


class FileIngest:
    """Reads files and stores their documents. Each document is on disk before its result is yielded.

    Args:
        library: Stores the documents.
        sources: Finds the documents of removed files.
        incoming: Stores a file until it is read.
        reading: Reads files.
        folders: The folders that the service may read for callers.
    """

    def __init__(
        self,
        library: Library,
        sources: SourceStore,
        incoming: IncomingFiles,
        reading: FileReading,
        folders: ServedFolders,
    ) -> None:
        self._library = library
        self._sources = sources
        self._incoming = incoming
        self._reading = reading
        self._folders = folders

    async def ingest_files(
        self, key: CollectionKey, parts: AsyncIterator[FileHeader | FilePart]
    ) -> AsyncGenerator[FileResult | FilesSummary, None]:
        """Store files as they arrive. A file is received only after the previous file is stored."""
        check_collection_name("collection", key.name)
        outcomes: Counter[FileOutcome] = Counter()
        async for header in parts:
            if not isinstance(header, FileHeader):
                raise InvalidRequest("a part of a file came without a header: send the header of each file first")
            async with self._incoming.open(key.tenant) as file:
                await _receive(header, parts, file)
                result = await self._ingest(key, header, file)
            outcomes[result.outcome] += 1
            yield result
        yield await self._summary(key, outcomes)

    async def ingest_folder(
        self, key: CollectionKey, selection: FolderSelection
    ) -> AsyncGenerator[FileResult | FilesSummary, None]:
        """Store a folder's files in order of their paths. If requested, delete the documents of removed files."""
        check_collection_name("collection", key.name)
        if key.tenant != DEFAULT_TENANT:
            raise PermissionDenied(
                "folders of the server are the operator's: send the files with IngestFiles",
                code=ErrorCode.CONFIG_INVALID,
            )
        listing = await self._folders.list_files(selection)
        outcomes: Counter[FileOutcome] = Counter()
        for path, reason in listing.unreadable:
            outcomes[FileOutcome.FAILED] += 1
            yield _failed(_source_of(selection.root, path), InvalidRequest(reason).failure)
        for path in listing.paths:
            result = await self._ingest_path(key, selection.root, path)
            outcomes[result.outcome] += 1
            yield result
        pruned = 0
        if selection.prunes:
            pruned = await self._prune(key, selection, listing)
        yield await self._summary(key, outcomes, pruned)

    async def _ingest_path(self, key: CollectionKey, root: str, path: str) -> FileResult:
        header = FileHeader(_source_of(root, path))
        async with self._incoming.open(key.tenant) as file:
            try:
                await self._folders.copy(root, path, file)
            except InvalidRequest as error:
                return _failed(header.source, error.failure)
            return await self._ingest(key, header, file)

    async def _ingest(self, key: CollectionKey, header: FileHeader, file: IncomingFile) -> FileResult:
        """Store a file. Raises errors that the file did not cause."""
        try:
            check_source("the name of the file", header.source)
            parse_metadata("file", header.metadata_json)
            document = await self._reading.read(header, file)
        except (InvalidRequest, Unavailable) as error:
            return _failed(header.source, error.failure)
        try:
            stored = await self._library.ingest(key, [document])
        except InvalidRequest as error:
            return _failed(header.source, error.failure)
        return FileResult(header.source, _outcome_of(stored), chunk_count=stored.split_chunk_count)

    async def _prune(self, key: CollectionKey, selection: FolderSelection, listing: FolderListing) -> int:
        """Delete the documents of removed files, except below a folder that cannot be listed. Returns their number."""
        there = {_source_of(selection.root, path) for path in listing.paths}
        unknown = tuple(f"{_source_of(selection.root, path)}/" for path, _ in listing.unreadable)
        stored = await self._sources.list_sources(key, f"{selection.root}/")
        gone = [
            source
            for source in stored
            if source not in there and not source.startswith(unknown) and is_selected(selection, source)
        ]
        if not gone:
            return 0
        return await self._library.delete_documents(key, gone)

    async def _summary(self, key: CollectionKey, outcomes: Counter[FileOutcome], pruned: int = 0) -> FilesSummary:
        collection = await self._library.find_collection(key)
        log.info("files ingested", tenant=key.tenant, collection=key.name, pruned=pruned, **_by_name(outcomes))
        return FilesSummary(dict(outcomes), pruned, collection)


async def _receive(header: FileHeader, parts: AsyncIterator[FileHeader | FilePart], file: IncomingFile) -> None:
    async for part in parts:
        if isinstance(part, FileHeader):
            break
        await file.write(part.data)
        if part.is_last:
            return
    raise InvalidRequest(f"file {header.source[:80]!r} has no end: set is_last in its last part")


def _source_of(root: str, path: str) -> str:
    """Return the source of a file or folder below a root. An empty path selects the root itself."""
    if not path:
        return root
    return f"{root}/{path}"


def _failed(source: str, failure: Failure) -> FileResult:
    return FileResult(source.encode(errors="backslashreplace").decode(), FileOutcome.FAILED, failure)


def _outcome_of(stored: IngestResult) -> FileOutcome:
    if stored.added:
        return FileOutcome.ADDED
    if stored.replaced:
        return FileOutcome.REPLACED
    return FileOutcome.UNCHANGED


def _by_name(outcomes: Counter[FileOutcome]) -> dict[str, int]:
    return {outcome.value.lower(): count for outcome, count in outcomes.items()}
