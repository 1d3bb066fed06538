"""Pulls a model: checks the space, transfers, verifies and names it, for any kind of source.

1. Received bytes are kept, however a pull ends. The next pull of the same content continues after them.
2. A file gets the model's name only after the SHA-256 of all bytes was verified and the header was read.
"""

from __future__ import annotations

import errno
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from gateway.pulling.failures import corrupt, no_hash, no_space, unavailable
from gateway.pulling.local_file import LocalFile
from gateway.pulling.source import Offer, Source
from pagantic_common.domain.errors import ErrorCode, PreconditionFailed, Unavailable
from pagantic_common.models.digest import sha256_of
from pagantic_common.models.folder import ModelFolder, PulledModel, check_name
from pagantic_common.models.gguf_header import NotGguf, read_gguf_header
from pagantic_common.models.kinds import capabilities_of, trained_window

ATTEMPTS = 4  # The maximum number of consecutive attempts without new bytes.
RETRY_S = 1.0
MARGIN_BYTES = 64 * 1024 * 1024  # Disk space that is left for other programs.
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LICENSE = re.compile(r"[A-Za-z0-9 .+()_-]{1,64}")

# Called with the received bytes, the total bytes, and a human-readable text about the current download.
OnProgress = Callable[[int, int, str], None]


def free_bytes_of(folder: Path) -> int:
    """Return the free space on a folder's disk, in bytes."""
    return shutil.disk_usage(folder).free


class Pull:
    """Pulls from a source into a folder.

    Args:
    source: The source of the model.
    folder: The folder for the model.
    wait_s: Maximum wait for another pull of the same content.
    on_progress: Called with the progress.
    free_bytes: Returns the free space on a folder's disk.
    retry_s: Time between two attempts after a connection has broken.
    """

    def __init__(
        self,
        source: Source,
        folder: ModelFolder,
        *,
        wait_s: float,
        on_progress: OnProgress,
        free_bytes: Callable[[Path], int] = free_bytes_of,
        retry_s: float = RETRY_S,
    ) -> None:
        self._source = source
        self._folder = folder
        self._wait_s = wait_s
        self._on_progress = on_progress
        self._free_bytes = free_bytes
        self._retry_s = retry_s

    def run(self, name: str = "", sha256: str = "") -> tuple[PulledModel, bool]:
        """Return the pulled model, and whether this pull downloaded it or it was already there.

        Args:
            name: Name for the model; empty selects the source's name.
            sha256: Hash that the user expects; empty selects the source's hash.

        Raises PaganticError with the code of the failure.
        """
        name = name or self._source.default_name
        check_name(name)
        offer = _with_hash(self._source.offer(), sha256.lower())
        if existing := self._known(name, offer):
            return existing, False

        def say_waiting() -> None:
            self._on_progress(0, offer.size_bytes, "waiting for another pull of the same file")

        with self._folder.pulling(offer.sha256, self._wait_s, say_waiting) as partial:
            if existing := self._known(name, offer):
                return existing, False
            self._fill(partial, offer)
            self._check(partial, offer)
            model = _described(partial, name, offer)
            self._folder.publish(partial, model, self._wait_s)
        return model, True

    def _known(self, name: str, offer: Offer) -> PulledModel | None:
        """Return the model if it was already pulled. Raises Conflict if the name belongs to different content."""
        self._folder.check_free(name, offer.sha256)
        return self._folder.find(name)

    def _fill(self, partial: Path, offer: Offer) -> None:
        """Add the missing bytes to the file. After a broken connection, reconnect as long as attempts deliver bytes."""
        source = self._source
        if twin := self._folder.find_content(offer.sha256):
            source = LocalFile(self._folder.file_of(twin.name))
        with _explaining_disk(partial), _scratch_beside(partial) as scratch, partial.open("ab") as file:
            if file.tell() > offer.size_bytes:
                file.truncate(0)
            self._check_room(partial, offer)
            self._transfer(file, source, offer, scratch)

    def _transfer(self, file: BinaryIO, source: Source, offer: Offer, scratch: Path) -> None:
        """Append until the file is complete. Raises Unavailable after repeated attempts without new bytes."""
        failures = 0
        while (start := file.tell()) < offer.size_bytes:
            try:
                self._append(file, source, offer, scratch)
            except Unavailable:
                failures += 1
                if file.tell() > start:
                    failures = 0
                if failures == ATTEMPTS:
                    raise
                time.sleep(self._retry_s)

    def _append(self, file: BinaryIO, source: Source, offer: Offer, scratch: Path) -> None:
        """Append the source's data to the end of the file. Raises Unavailable if no data arrives."""
        start = file.tell()

        def report(here: int, words: str) -> None:
            self._on_progress(here, offer.size_bytes, words)

        for block in source.read(offer, start, scratch, report):
            file.write(block)
            report(file.tell(), "")
            if file.tell() > offer.size_bytes:
                break  # The source sends more than it offered, so the hash check will reject the file.
        if file.tell() == start:
            raise unavailable(f"{offer.source} ends after {start} of {offer.size_bytes} bytes")

    def _check_room(self, partial: Path, offer: Offer) -> None:
        """Raise PreconditionFailed (CONFIG_NO_SPACE) unless the rest of the file fits on the disk."""
        needed = offer.size_bytes - partial.stat().st_size + offer.spare_bytes + MARGIN_BYTES
        if (free := self._free_bytes(partial.parent)) < needed:
            raise no_space(
                f"{offer.source} needs {needed / 1e6:.0f} MB on the disk of {str(self._folder.path)!r}, which has "
                f"{free / 1e6:.0f} MB left"
            )

    def _check(self, partial: Path, offer: Offer) -> None:
        """Check the hash. On a mismatch, delete the bytes and raise PreconditionFailed (CONFIG_MODEL_CORRUPT)."""
        self._on_progress(offer.size_bytes, offer.size_bytes, "checking the SHA-256")
        digest = sha256_of(partial)
        if digest == offer.sha256:
            return
        size = partial.stat().st_size
        partial.unlink()
        raise corrupt(f"{offer.source} has the SHA-256 {digest} and {size} bytes, and {offer.sha256} is expected")


def _with_hash(offer: Offer, expected: str) -> Offer:
    """Return the offer with the hash to check. Raises PreconditionFailed if the source has different content."""
    if expected and offer.sha256 and expected != offer.sha256:
        raise corrupt(f"{offer.source} has the SHA-256 {offer.sha256}, and --sha256 expects {expected}")
    if not expected and not offer.sha256:
        raise no_hash(offer.source)
    return replace(offer, sha256=offer.sha256 or expected)


def _described(partial: Path, name: str, offer: Offer) -> PulledModel:
    """Return the manifest. If the file is not a model, delete its bytes and raise PreconditionFailed."""
    try:
        header = read_gguf_header(partial)
    except NotGguf as error:
        partial.unlink()
        raise corrupt(f"{offer.source} is no model that can be served, which is a GGUF file: {error}") from None

    def read(key: str) -> str:
        return header.get(key, "")

    license_name = offer.license or read("general.license")
    return PulledModel(
        name=name,
        source=offer.source,
        sha256=offer.sha256,
        size_bytes=offer.size_bytes,
        pulled_at=datetime.now(UTC).replace(microsecond=0),
        context_tokens=trained_window(read),
        capabilities=capabilities_of(read),
        license=license_name if _LICENSE.fullmatch(license_name) else "",
    )


@contextmanager
def _scratch_beside(partial: Path) -> Iterator[Path]:
    """Yield an empty folder, deleting the remains of a killed pull."""
    scratch = partial.with_suffix(".scratch")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _explaining_disk(partial: Path) -> Iterator[None]:
    """Name the disk in the error of a failed write. The data already written is kept for the next pull."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise no_space(f"the disk of {str(partial.parent)!r} is full") from None
        reason = (error.strerror or str(error)).lower()
        raise PreconditionFailed(
            f"{str(error.filename or partial)!r}: {reason}: make it readable and writable, or set "
            "PAGANTIC_MODELS_FOLDER to another folder",
            code=ErrorCode.CONFIG_INVALID,
        ) from None
