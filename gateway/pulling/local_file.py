"""Models that are already files on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.pulling.failures import missing
from gateway.pulling.source import BLOCK_BYTES, Offer, Report
from pagantic_common.models.digest import sha256_of


class LocalFile:
    """A local file that is copied."""

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser().absolute()

    @property
    def default_name(self) -> str:
        """The stem of the file's name."""
        return self._path.stem

    def offer(self) -> Offer:
        """Return the offer, after reading the file once to compute its hash."""
        try:
            return Offer(str(self._path), self._path.stat().st_size, sha256_of(self._path))
        except OSError as error:
            raise missing(f"{str(self._path)!r} cannot be read: {(error.strerror or str(error)).lower()}") from None

    def read(self, offer: Offer, start: int, scratch: Path, report: Report) -> Iterator[bytes]:  # noqa: ARG002
        """Yield the content from a byte onwards."""
        with self._path.open("rb") as file:
            file.seek(start)
            while block := file.read(BLOCK_BYTES):
                yield block
