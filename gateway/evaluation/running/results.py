"""The results file of an evaluation in JSON Lines: the first line is a header, and each other line a case's result.

Each line is on disk before the work continues. When the file is opened, a line that a kill left incomplete is removed.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

MAX_OUTPUT_CHARS = 20_000


class ResultsError(ValueError):
    """Raised if a results file cannot be read or written. The message states the reason."""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True)


LineT = TypeVar("LineT", bound=_Line)


class Header(_Line):
    """The header of a results file: the suite as JSON with its hash, the command's settings, versions, and units."""

    kind: Literal["evaluation"] = "evaluation"
    format: Literal[1] = 1
    id: str
    name: str
    started_at: str
    suite: dict[str, Any]
    suite_hash: str
    settings: dict[str, Any]
    units: dict[str, str]
    versions: dict[str, str]


class StoredScore(_Line):
    """A score as stored. `value` is None if the score is missing, and `note` states the reason."""

    value: float | None
    note: str = ""
    confidence: float | None = None


class Result(_Line):
    """The result of a case. `key` is the hash of its input and expectations. `error` is a code, or empty on success.

    `variant` is the experiment's variant for the request, in the form experiment=variant.
    """

    kind: Literal["result"] = "result"
    case: str
    key: str
    tags: list[str] = []
    request_id: str
    scores: dict[str, StoredScore]
    output: str = ""
    error: str = ""
    error_message: str = ""
    model: str = ""
    variant: str = ""
    seed: int | None = None
    latency_s: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    ended_at: str = ""

    @property
    def groups(self) -> list[str]:
        """The groups for which reports show separate figures: the tags and the variant."""
        return [*self.tags, self.variant] if self.variant else self.tags

    @property
    def is_incomplete(self) -> bool:
        """Whether the case failed or lacks a score."""
        return bool(self.error) or any(score.value is None for score in self.scores.values())


class Results:
    """The header of an evaluation and its results by case."""

    def __init__(self, header: Header, by_case: Mapping[str, Result]) -> None:
        self.header = header
        self.by_case = dict(by_case)

    @property
    def case_count(self) -> int:
        """The number of cases in the suite."""
        return len(self.header.suite["cases"])

    @property
    def is_complete(self) -> bool:
        """Whether each case has a result."""
        return len(self.by_case) == self.case_count


class ResultsFile:
    """A context manager for a results file that only one program at a time may write.

    Raises ResultsError if the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: Results | None = None
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = os.fdopen(descriptor, "r+b", buffering=0)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            data = self._file.read()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                self._file.truncate(whole)
            self.results = _parse(data[:whole], self.path)
        except BlockingIOError:
            self._close()
            raise ResultsError(f"another command is at work on {str(self.path)!r}: wait for its end") from None
        except OSError as error:
            self._close()
            raise ResultsError(_reason(self.path, error)) from None
        except ResultsError:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def begin(self, header: Header) -> Results:
        """Write the header of an empty results file."""
        self._write(header)
        with suppress(OSError):  # Some file systems cannot sync a folder.
            folder = os.open(self.path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        self.results = Results(header, {})
        return self.results

    def append(self, result: Result) -> None:
        """Write the result of a case, and return once it is on disk."""
        self._write(result)
        if self.results is not None:
            self.results.by_case[result.case] = result

    def _write(self, line: _Line) -> None:
        if self._file is None:
            raise ResultsError(f"{str(self.path)!r} is not open")
        # A model's JSON may contain an unpaired surrogate, which is written as an escape.
        text = json.dumps(line.model_dump(mode="python"), separators=(",", ":"))
        try:
            data = memoryview(text.encode() + b"\n")
            while data:
                data = data[self._file.write(data) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ResultsError(_reason(self.path, error)) from None

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_results(path: Path) -> Results:
    """Return the results in a file, even while another program writes it.

    Raises ResultsError if the results cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ResultsError(_reason(path, error)) from None
    results = _parse(data[: data.rfind(b"\n") + 1], path)
    if results is None:
        raise ResultsError(f"{str(path)!r} is empty")
    return results


def _parse(data: bytes, path: Path) -> Results | None:
    """Return the results of the complete lines, or None if there is no line. The last line for a case counts."""
    lines = data.splitlines()
    if not lines:
        return None
    header = _read_line(Header, lines[0], path, 1)
    results = [_read_line(Result, line, path, number) for number, line in enumerate(lines[1:], 2)]
    return Results(header, {result.case: result for result in results})


def _read_line(kind: type[LineT], line: bytes, path: Path, number: int) -> LineT:
    try:
        return kind.model_validate(json.loads(line))
    except (ValidationError, ValueError):
        raise ResultsError(f"line {number} of {str(path)!r} is no line of an evaluation's results") from None


def _reason(path: Path, error: OSError) -> str:
    return f"cannot use {str(path)!r}: {(error.strerror or str(error)).lower()}"
