"""Files for ingestion, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pagantic_common.domain.errors import Failure
from services.context.core.document import Collection


@dataclass(frozen=True, slots=True)
class FileHeader:
    """Begins a file: the source of its document, and the caller's information about it."""

    source: str
    media_type: str = ""
    metadata_json: str = ""


@dataclass(frozen=True, slots=True)
class FilePart:
    """The next bytes of a file."""

    data: bytes
    is_last: bool


@dataclass(frozen=True, slots=True)
class FolderSelection:
    """Files of a folder: the name of a root, a path below it, and a pattern for the files' paths below the root."""

    root: str
    path: str = ""
    glob: str = ""
    prunes: bool = False


class FileOutcome(StrEnum):
    """The result of storing a file."""

    ADDED = "ADDED"
    REPLACED = "REPLACED"
    UNCHANGED = "UNCHANGED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class FileResult:
    """The outcome of a file; its document is on disk unless it failed."""

    source: str
    outcome: FileOutcome
    failure: Failure | None = None
    chunk_count: int = 0


@dataclass(frozen=True, slots=True)
class FilesSummary:
    """The numbers of files by their outcome, and of documents that were deleted; the collection after it."""

    counts: dict[FileOutcome, int]
    pruned: int
    collection: Collection | None
