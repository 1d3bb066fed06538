"""The files of the models that this service decodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pagantic_common.domain.errors import InvalidRequest
from services.inference.adapters.model_file import draft_model_bytes
from services.inference.settings import InferenceSettings


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model.

    Attributes:
        given: The file of the settings, which may have an expected hash.
        loaded: The file that the engine loads: the given one, or one that was made of it.
        projector: The file of the image encoder; None for none.
        draft: The file of the draft model; None for none.
    """

    given: Path
    loaded: Path
    projector: Path | None = None
    draft: Path | None = None

    @property
    def from_settings(self) -> list[Path]:
        """The files that the settings name."""
        return [path for path in (self.given, self.projector, self.draft) if path is not None]

    @property
    def size_bytes(self) -> int:
        """The bytes of all files that are loaded.

        Raises PreconditionFailed (CONFIG_NO_ENGINE) if there is no draft model where the settings name one.
        """
        size_bytes = self.loaded.stat().st_size
        if self.projector is not None:
            size_bytes += self.projector.stat().st_size
        if self.draft is not None:
            size_bytes += draft_model_bytes(self.draft)
        return size_bytes


def files_of(settings: InferenceSettings, own: Path | None) -> dict[str, ModelFiles]:
    """Return the files of the model of MODEL_PATH, which `own` is, and those of MODELS, by alias and in this order.

    Raises InvalidRequest for an expected hash of another alias.
    """
    files: dict[str, ModelFiles] = {}
    if own is not None:
        beside = (_optional(settings.projector_path), _optional(settings.draft_model_path))
        files[settings.model_name or own.stem] = ModelFiles(own, own, *beside)
    files |= {alias: ModelFiles(Path(path), Path(path)) for alias, path in settings.models.items()}
    if unknown := sorted(set(settings.model_sha256) - set(files)):
        known = ", ".join(map(repr, files))
        raise InvalidRequest(f"MODEL_SHA256 names {', '.join(map(repr, unknown))}: the models are {known}")
    return files


def _optional(path: str) -> Path | None:
    return Path(path) if path else None
