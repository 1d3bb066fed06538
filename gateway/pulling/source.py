"""The interface of model sources: a source names content by its hash, and reads it from any place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

BLOCK_BYTES = 1024 * 1024
# Called with the bytes that are here by now, and with words about the part that is on its way; both are for people.
Report = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Offer:
    """The offer of a source.

    Attributes:
        source: Its exact description, for the manifest.
        size_bytes: Size of the file.
        sha256: Hash of the file; empty if the source does not state it.
        license: Name of the license; empty if the source does not state it.
        spare_bytes: Room that the source needs beside the file while it is read.
    """

    source: str
    size_bytes: int
    sha256: str = ""
    license: str = ""
    spare_bytes: int = 0


class Source(Protocol):
    """A file that can be pulled. Its methods raise PaganticError with a code of models and sources."""

    @property
    def default_name(self) -> str:
        """The name of the model, unless the user chooses another."""
        ...

    def offer(self) -> Offer:
        """Query the source's offer."""
        ...

    def read(self, offer: Offer, start: int, scratch: Path, report: Report) -> Iterator[bytes]:
        """Yield the content from a byte on; `scratch` is an empty folder for the source's temporary files."""
        ...
