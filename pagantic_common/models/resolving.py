"""Finds the file that a setting means: a path, or the name of a pulled model."""

from __future__ import annotations

import os
from pathlib import Path

from pagantic_common.models.folder import SUFFIX, ModelFolder
from pagantic_common.models.settings import models_folder


def model_file(given: str) -> str:
    """Return the path of a model's file. A value with a slash or the suffix of GGUF files is a path.

    Raises ValueError with the next step for a name that was not pulled.
    """
    path = os.path.expanduser(given)  # noqa: PTH111 - the text is kept, as in "./model.gguf"
    if not given or "/" in path or path.endswith(SUFFIX) or Path(path).is_file():
        return path
    folder = ModelFolder(models_folder())
    if folder.find(given) is None:
        raise ValueError(f"run `pagantic pull {given}` first: it must be a GGUF file or the name of a pulled model")
    return str(folder.file_of(given))
