"""Reads files in worker processes."""

from __future__ import annotations

from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest, Unavailable
from pagantic_common.telemetry.logging import get_logger, report_bug
from pagantic_common.workers.process_workers import ProcessWorkers
from pagantic_common.workers.replies import WorkFailed
from services.context.adapters.reading.file_work import read_file
from services.context.core.document import Document
from services.context.core.reading.bounds import ReadingBounds
from services.context.core.reading.files import FileHeader
from services.context.ports import IncomingFile

log = get_logger(__name__)


class ProcessReading:
    """Implements FileReading with worker processes."""

    def __init__(self, workers: ProcessWorkers, bounds: ReadingBounds) -> None:
        self._workers = workers
        self._bounds = bounds

    async def read(self, header: FileHeader, file: IncomingFile) -> Document:
        """Return the document of a file.

        Raises InvalidRequest if the file cannot be read, and Unavailable if the workers are too busy.
        """
        try:
            return await self._workers.run(
                read_file, file.path, header.source, header.media_type, header.metadata_json, self._bounds
            )
        except Unavailable as error:
            raise Unavailable(
                f"the file is not read: {error}; send it again",
                code=ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE,
                retry_after_s=error.retry_after_s,
            ) from None
        except WorkFailed as error:
            failure = Internal(report_bug(log, error))
            raise InvalidRequest(f"the file cannot be read: {failure}; send it in another format") from None
