"""Finds the file for the value of a setting: a path, or the name of a pulled model."""

from __future__ import annotations

import os
from pathlib import Path

from pagantic_common.models.catalog import catalog, did_you_mean
from pagantic_common.models.folder import SUFFIX, ModelFolder
from pagantic_common.models.settings import models_folder

NO_MODEL = "none"


def model_file(given: str) -> str:
    """Return the path of a model file. A value with a slash or the suffix of GGUF files is a path.

    Raises ValueError, with the user's next step, if a name was not pulled.
    """
    path = os.path.expanduser(given)  # noqa: PTH111 - the text is kept, as in "./model.gguf"
    if not given or "/" in path or path.endswith(SUFFIX) or Path(path).is_file():
        return path
    folder = ModelFolder(models_folder())
    if folder.find(given) is None:
        raise ValueError(f"{_step_to(given, folder)}: it must be a GGUF file or the name of a pulled model")
    return str(folder.file_of(given))


def _step_to(name: str, folder: ModelFolder) -> str:
    """Return the command that pulls the named model, or a hint at the correct name."""
    if name in catalog():
        return f"run `pagantic pull {name}` first"
    names = sorted({*catalog(), *(model.name for model in folder.models())})
    lists = "`pagantic models` lists what is here, and `pagantic models --catalog` what can be pulled"
    return f"{did_you_mean(name, names)} {lists}".lstrip()
