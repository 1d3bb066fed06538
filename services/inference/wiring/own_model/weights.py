"""Chooses the file that the engine loads for the model of MODEL_PATH: the given one, or one with weights of 8 bits."""

from __future__ import annotations

from pathlib import Path

from pagantic_common.domain.errors import PreconditionFailed
from pagantic_common.telemetry.logging import get_logger
from services.inference.adapters.conversion.eight_bit_weights import eight_bit_file
from services.inference.adapters.llama.weights import uses_amx
from services.inference.settings import AUTO, InferenceSettings

log = get_logger(__name__)


def own_weights(settings: InferenceSettings, own: Path) -> Path:
    """Return the file to load for a model that generates text.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) if the settings ask for a conversion that fails. If the service chooses
    by itself, it goes on with the given file.
    """
    wants_automatically = settings.weights == AUTO and _is_faster_converted(settings)
    if not wants_automatically and settings.weights != "q8_0":
        return own
    try:
        return eight_bit_file(own)
    except PreconditionFailed as error:
        if not wants_automatically:
            raise
        log.warning("the bundled model runs with the weights of its file", reason=str(error))
        return own


def _is_faster_converted(settings: InferenceSettings) -> bool:
    is_bundled = not settings.model_path
    return is_bundled and settings.gpu_layers == 0 and not uses_amx()
