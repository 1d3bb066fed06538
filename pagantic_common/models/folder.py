"""The folder of pulled models. Each model has a file and a manifest under its name, whatever its source.

Several processes may use a folder at once:

1. A model counts as pulled if its manifest exists. The manifest is written last and removed first.
2. Files get their names by a rename within the folder, so that a named file is never incomplete.
3. The partial file of a pull is named by the SHA-256 of the complete file, and belongs to the holder of its lock.
4. A service holds a shared lock on each file that it serves. A model is removed only under an exclusive lock.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pagantic_common.domain.errors import Aborted, Conflict, ErrorCode, InvalidRequest, NotFound, PreconditionFailed
from pagantic_common.models.digest import sha256_of

SUFFIX = ".gguf"
MAX_MANIFEST_BYTES = 64 * 1024
POLL_S = 0.2
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,126}")
_PARTIAL = "partial"


class PulledModel(BaseModel):
    """The manifest of a pulled model.

    Attributes:
        source: The source of the pull, such as `smollm2:135m` or `hf:owner/repo/file.gguf@revision`.
        context_tokens: Context window with which the model was trained, or 0 if the file does not state it.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    source: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)
    pulled_at: datetime
    context_tokens: int = Field(0, ge=0)
    capabilities: tuple[str, ...] = ()
    license: str = ""


def check_name(name: str) -> None:
    """Raise InvalidRequest if a text cannot be the name of a pulled model."""
    if _NAME.fullmatch(name) and not name.endswith(SUFFIX):
        return
    raise InvalidRequest(
        f"{name[:140]!r} cannot be the name of a model: use letters, digits and . _ : -, at most 127, beginning with a "
        f"letter or digit, and not ending with {SUFFIX}"
    )


class ModelFolder:
    """The pulled models in a folder, which need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file_of(self, name: str) -> Path:
        """Return the path of a model's file, whether it was pulled or not."""
        return self.path / f"{name}{SUFFIX}"

    def find(self, name: str) -> PulledModel | None:
        """Return a pulled model, or None if the name was not pulled or its manifest is damaged."""
        if not _NAME.fullmatch(name) or not self.file_of(name).is_file():
            return None
        try:
            with self._manifest_of(name).open("rb") as file:
                return PulledModel.model_validate_json(file.read(MAX_MANIFEST_BYTES))
        except (OSError, ValidationError):
            return None

    def models(self) -> list[PulledModel]:
        """Return every pulled model, sorted by name."""
        names = sorted(path.stem for path in self.path.glob(f"*{SUFFIX}"))
        return [model for model in map(self.find, names) if model is not None]

    def find_content(self, sha256: str) -> PulledModel | None:
        """Return a pulled model with this content under any name, or None."""
        return next((model for model in self.models() if model.sha256 == sha256), None)

    def unfinished_bytes(self) -> int:
        """Return the total size of unfinished pulls, in bytes."""
        return bytes_in(self.path / _PARTIAL)

    @contextmanager
    def pulling(self, sha256: str, wait_s: float, on_wait: Callable[[], None]) -> Iterator[Path]:
        """Yield the partial file for a pull of this content, with the data of any earlier pull.

        Waits for the end of another pull of the same content, and calls `on_wait` once before the wait. Raises Aborted
        if the other pull has not ended within `wait_s` seconds, and PreconditionFailed if the folder is not writable.
        """
        folder = self.path / _PARTIAL
        with self._explaining():
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / f"{sha256}.lock").open("ab")
        with lock:
            _wait_for(lock, wait_s, on_wait, f"another pull of the same file is still running after {wait_s:g} s")
            yield folder / sha256

    def publish(self, partial: Path, model: PulledModel, wait_s: float) -> None:
        """Move a complete file to its final name.

        Raises Conflict if other content has the name, and PreconditionFailed if the folder is not writable.
        """
        with self._changing(wait_s):
            self.check_free(model.name, model.sha256)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(self.file_of(model.name))
            manifest = self._manifest_of(model.name)
            written = manifest.with_name(f".{manifest.name}")
            written.write_text(model.model_dump_json(indent=1), encoding="utf-8")
            written.replace(manifest)

    def check_free(self, name: str, sha256: str) -> None:
        """Raise Conflict if the name is taken by other content, or by a file not known to hold this content."""
        model, file = self.find(name), self.file_of(name)
        if model is None and file.is_file() and sha256_of(file) != sha256:
            raise Conflict(f"{str(file)!r} is there, and no pull has made it: give the model another name with --as")
        if model is not None and model.sha256 != sha256:
            raise Conflict(
                f"{name!r} was pulled from {model.source} and has another content: give this one another name with "
                f"--as, or delete that one with `pagantic rm {name}`"
            )

    def remove(self, name: str, wait_s: float) -> PulledModel:
        """Delete a model and return its manifest.

        Raises NotFound (CONFIG_MODEL_NOT_FOUND) if the name was not pulled, and PreconditionFailed while a service on
        this machine serves the model.
        """
        if self.find(name) is None:
            raise self.not_pulled(name)
        with self._changing(wait_s):
            model = self.find(name)
            if model is None:
                raise self.not_pulled(name)
            with self.file_of(name).open("rb") as file:
                if not _try_lock(file, fcntl.LOCK_EX):
                    raise PreconditionFailed(
                        f"a service serves {name!r}: stop it with `pagantic down`, or take it out of the settings"
                    )
                self._manifest_of(name).unlink(missing_ok=True)
                self.file_of(name).unlink()
        return model

    def remove_unfinished(self) -> int:
        """Delete the partial files of interrupted pulls, and return the number of freed bytes.

        The files of running pulls stay. Raises PreconditionFailed if the folder is not writable.
        """
        with self._explaining():
            return sum(map(_delete_unlocked, (self.path / _PARTIAL).glob("*.lock")))

    def not_pulled(self, name: str) -> NotFound:
        """Return the failure for a name that was not pulled. It lists the pulled models."""
        names = ", ".join(model.name for model in self.models()) or "none"
        return NotFound(f"no model {name!r} was pulled; there are: {names}", code=ErrorCode.CONFIG_MODEL_NOT_FOUND)

    def _manifest_of(self, name: str) -> Path:
        return self.path / f"{name}.json"

    @contextmanager
    def _changing(self, wait_s: float) -> Iterator[None]:
        """Keep other processes from changing names inside the block."""
        with self._explaining(), (self.path / ".lock").open("ab") as lock:
            _wait_for(lock, wait_s, lambda: None, f"another command has changed {str(self.path)!r} for {wait_s:g} s")
            yield

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PreconditionFailed(
                f"the folder of models, {str(self.path)!r}, cannot be changed "
                f"({(error.strerror or str(error)).lower()}): set PAGANTIC_MODELS_FOLDER to another one",
                code=ErrorCode.CONFIG_INVALID,
            ) from None


@contextmanager
def serving(files: Iterable[Path]) -> Iterator[None]:
    """Prevent `pagantic rm` from removing the given model files inside the block; unreadable files are skipped."""
    with ExitStack() as stack:
        for path in files:
            with suppress(OSError):  # An unreadable file is reported where it is loaded.
                _try_lock(stack.enter_context(path.open("rb")), fcntl.LOCK_SH)
        yield


def _wait_for(lock: BinaryIO, wait_s: float, on_wait: Callable[[], None], problem: str) -> None:
    """Lock a file exclusively for this process. Raises Aborted if that takes longer than `wait_s` seconds."""
    if _try_lock(lock, fcntl.LOCK_EX):
        return
    on_wait()
    until_s = time.monotonic() + wait_s
    while not _try_lock(lock, fcntl.LOCK_EX):
        if time.monotonic() > until_s:
            raise Aborted(f"{problem}: wait for its end, and try again")
        time.sleep(POLL_S)


def _try_lock(file: BinaryIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _delete_unlocked(lock_file: Path) -> int:
    """Delete the partial file of a pull unless the pull is running, and return the number of freed bytes.

    The lock file stays, because another process may have opened it already.
    """
    with lock_file.open("ab") as lock:
        if not _try_lock(lock, fcntl.LOCK_EX):
            return 0
        return _delete(lock_file.with_suffix(""), lock_file.with_suffix(".scratch"))


def _delete(file: Path, folder: Path) -> int:
    """Delete a file and a folder, if they exist, and return the number of freed bytes."""
    freed = bytes_in(folder) + (file.stat().st_size if file.exists() else 0)
    file.unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
    return freed


def bytes_in(folder: Path) -> int:
    """Return the total size of all files under a folder. Files may appear or disappear while it runs."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 - this is what os.walk gives
    return size
