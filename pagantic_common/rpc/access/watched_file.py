"""A file that is reread when it changes, so that keys and policies can be replaced without a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.telemetry.logging import get_logger

MAX_BYTES = 64 * 1024
LOOK_S = 1.0  # interval between checks for changes of the file

ContentT = TypeVar("ContentT")

log = get_logger(__name__)


class WatchedFile(Generic[ContentT]):
    """The content of a file, at most LOOK_S out of date.

    If the file cannot be read or its content is refused, the previous content stays. The first read raises
    InvalidRequest instead.

    Args:
        path: The file, or a link that may be replaced.
        setting: The setting that names the file, for messages.
        parse: Returns the content that the bytes represent. Raises InvalidRequest, without quoting the bytes.
        max_bytes: Maximum size of the file.
    """

    def __init__(
        self, path: Path, setting: str, parse: Callable[[bytes], ContentT], max_bytes: int = MAX_BYTES
    ) -> None:
        self._max_bytes = max_bytes
        self._path = path
        self._setting = setting
        self._parse = parse
        self._looked_s = time.monotonic()
        self._version = self._path_version()
        self._content = self._read()

    def content(self) -> ContentT:
        """Return the content of the file."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._look()
        return self._content

    def _look(self) -> None:
        try:
            version = self._path_version()
            if version == self._version:
                return
            self._content = self._read()
            self._version = version
            log.info("a watched file was read again", setting=self._setting)
        except InvalidRequest as error:
            log.warning("a watched file cannot be read: its content stays as it was", reason=str(error))

    def _path_version(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError as error:
            raise self._unreadable(error) from None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def _read(self) -> ContentT:
        try:
            with self._path.open("rb") as file:
                data = file.read(self._max_bytes + 1)
        except OSError as error:
            raise self._unreadable(error) from None
        if len(data) > self._max_bytes:
            raise InvalidRequest(f"{self._setting} {self._shown_path} has more than {self._max_bytes} bytes")
        try:
            return self._parse(data)
        except InvalidRequest as error:
            raise InvalidRequest(f"{self._setting} {self._shown_path} {error}") from None

    def _unreadable(self, error: OSError) -> InvalidRequest:
        return InvalidRequest(f"{self._setting} {self._shown_path} cannot be read: {error.strerror}")

    @property
    def _shown_path(self) -> str:
        if self._path.name.startswith(("pag_", "-----")):  # The setting contains a key instead of a path.
            return "(not a path)"
        return repr(str(self._path))
