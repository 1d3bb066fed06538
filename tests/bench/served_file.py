"""The model file that a service with this environment loads."""

from __future__ import annotations

from pathlib import Path

from services.inference.adapters.default_model import find_default_model
from services.inference.settings import InferenceSettings
from services.inference.wiring.own_model import own_weights


def served_file() -> Path:
    """Return the file of MODEL_PATH, or the bundled one, converted where the service converts it."""
    settings = InferenceSettings()
    return own_weights(settings, Path(settings.model_path) if settings.model_path else find_default_model())
