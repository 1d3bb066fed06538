"""Files to ingest, and the results of ingesting them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pagantic_common.domain.errors import Failure
from services.context.core.document import Collection


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The start of a file: the source of its document, and the caller's information about the file."""

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
    """A selection of files: the name of a root, a path below it, and a pattern for paths relative to the root."""

    root: str
    path: str = ""
    glob: str = ""
    prunes: bool = False


class FileOutcome(StrEnum):
    """The outcome of storing a file."""

    ADDED = "ADDED"
    REPLACED = "REPLACED"
    UNCHANGED = "UNCHANGED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class FileResult:
    """The result of a file. The document is on disk unless the outcome is FAILED."""

    source: str
    outcome: FileOutcome
    failure: Failure | None = None
    chunk_count: int = 0


@dataclass(frozen=True, slots=True)
class FilesSummary:
    """The number of files by outcome, the number of deleted documents, and the resulting collection."""

    counts: dict[FileOutcome, int]
    pruned: int
    collection: Collection | None
