"""Opens the readers of files, and makes the ingest of files over them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pagantic_common.workers.process_workers import ProcessWorkers
from services.context.adapters.reading.file_work import read_file
from services.context.adapters.reading.incoming import TemporaryFiles
from services.context.adapters.reading.process_reading import ProcessReading
from services.context.adapters.reading.rooted_folders import RootedFolders
from services.context.adapters.store.access import StoreAccess
from services.context.adapters.store.sources import SqlSources
from services.context.app.file_ingest import FileIngest
from services.context.app.library import Library
from services.context.ports import FileReading, IncomingFiles, ServedFolders
from services.context.settings import ContextSettings


@dataclass(frozen=True, slots=True)
class FileReaders:
    """The opened readers of files."""

    incoming: IncomingFiles
    reading: FileReading
    folders: ServedFolders

    def make_ingest(self, library: Library, access: StoreAccess) -> FileIngest:
        """Make the ingest of files into a library."""
        return FileIngest(library, SqlSources(access), self.incoming, self.reading, self.folders)


@asynccontextmanager
async def open_readers(settings: ContextSettings) -> AsyncIterator[FileReaders]:
    """Start the processes that read files, and make a folder for files that wait."""
    with TemporaryFiles(settings.max_file_bytes) as incoming:
        async with ProcessWorkers(settings.worker_limits(read_file.__module__)) as workers:
            yield FileReaders(
                incoming,
                ProcessReading(workers, settings.reading_bounds),
                RootedFolders(settings.ingest_roots, settings.max_file_bytes),
            )
