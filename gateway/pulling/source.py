"""The interface of model sources: a source identifies content by its hash and can read it from any byte onwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

BLOCK_BYTES = 1024 * 1024
# Called with the number of bytes received so far and a text about the part in transit, both for display.
Report = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Offer:
    """The offer of a source.

    Attributes:
    source: Exact description of the source, for the manifest.
    size_bytes: Size of the file.
    sha256: Hash of the file, or empty if the source does not state it.
    license: Name of the license, or empty if the source does not state it.
    spare_bytes: Space that the source needs in addition to the file while it is read.
    """

    source: str
    size_bytes: int
    sha256: str = ""
    license: str = ""
    spare_bytes: int = 0


class Source(Protocol):
    """A file that can be pulled. Its methods raise PaganticError with the code for models or sources."""

    @property
    def default_name(self) -> str:
        """The name of the model, unless the user chooses a different one."""
        ...

    def offer(self) -> Offer:
        """Return the offer, querying the source if necessary."""
        ...

    def read(self, offer: Offer, start: int, scratch: Path, report: Report) -> Iterator[bytes]:
        """Yield the content from a byte onwards. `scratch` is an empty folder for the source's temporary files."""
        ...
