"""Shows the models of this machine and of a running system as rows, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.client.tables import cell, list_table
from pagantic_common.models.catalog import CatalogModel
from pagantic_common.models.folder import PulledModel

_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """A model that is pulled, served, or both under the same name. `state` is None if the service reports no state."""

    name: str
    pulled: PulledModel | None = None
    served: message_pb2.ModelInfo | None = None
    state: pb.ModelState | None = None
    is_default: bool = False

    @property
    def context_tokens(self) -> int:
        """The context window in tokens: as served, otherwise as trained, or 0 if it is unknown."""
        if self.served is not None:
            return self.served.context_window
        if self.pulled is not None:
            return self.pulled.context_tokens
        return 0

    @property
    def capabilities(self) -> Sequence[str]:
        """The capabilities of the served model or, if it is not served, of the pulled model."""
        if self.served is not None:
            return self.served.capabilities
        if self.pulled is not None:
            return self.pulled.capabilities
        return ()

    @property
    def size_bytes(self) -> int:
        """The size of the model's files, or of its memory if it is not pulled, or 0 if both are unknown."""
        if self.pulled is not None:
            return self.pulled.size_bytes
        if self.state is not None:
            return self.state.memory_bytes
        return 0

    @property
    def held_bytes(self) -> int:
        """The memory that the model currently uses."""
        if self.state is not None and self.state.is_loaded:
            return self.state.memory_bytes
        return 0

    @property
    def status(self) -> str:
        """The status in words: whether the model is served and loaded."""
        if self.served is None:
            return "pulled"
        words = "served"
        if self.state is not None:
            words = "loaded" if self.state.is_loaded else "not loaded"
        if self.is_default:
            words += ", default"
        return words

    def as_json(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        described: dict[str, Any] = {
            "name": self.name,
            "context_window": self.context_tokens,
            "capabilities": list(self.capabilities),
            "size_bytes": self.size_bytes,
            "served": self.served is not None,
            "default": self.is_default,
            "loaded": self.state is not None and self.state.is_loaded,
            "memory_bytes": self.held_bytes,
            "running": 0 if self.state is None else self.state.running,
            "pulled": None,
        }
        if self.pulled is not None:
            shown = {"source", "sha256", "license", "pulled_at"}
            described["pulled"] = self.pulled.model_dump(mode="json", include=shown)
        return described


def rows_of(pulled: Sequence[PulledModel], listed: pb.ListModelsResponse | None) -> list[Row]:
    """Return the served models in the order of the service, followed by the models that are only pulled."""
    by_name = {model.name: model for model in pulled}
    rows: list[Row] = []
    if listed is not None:
        states: list[pb.ModelState | None] = [*listed.states]
        states += [None] * (len(listed.models) - len(states))
        for place, (info, state) in enumerate(zip(listed.models, states, strict=False)):
            rows.append(Row(info.name, by_name.pop(info.name, None), info, state, is_default=place == 0))
    return [*rows, *(Row(model.name, model) for model in by_name.values())]


def models_table(rows: Sequence[Row]) -> Table:
    """Return a table with a row for each model."""
    table = list_table(("name", "size", "context", "state", "memory", "can"), right={"size", "context", "memory"})
    for row in rows:
        context = str(row.context_tokens or "-")
        texts = (
            row.name,
            _size(row.size_bytes),
            context,
            row.status,
            _size(row.held_bytes),
            " ".join(row.capabilities),
        )
        table.add_row(*map(cell, texts))
    return table


def catalog_table(models: Sequence[CatalogModel]) -> Table:
    """Return a table of the models that `pagantic pull` knows by a short name."""
    table = list_table(("name", "size", "context", "license", "model"), right={"size", "context"})
    for model in models:
        texts = (model.name, _size(model.size_bytes), str(model.context_tokens), model.license, model.title)
        table.add_row(*map(cell, texts))
    return table


def _size(size_bytes: int) -> str:
    return size_text(size_bytes) if size_bytes else "-"


def size_text(size_bytes: int) -> str:
    """Return a human-readable size."""
    if size_bytes < _MEGABYTE:
        return f"{size_bytes / 1e3:.0f} kB"
    return f"{size_bytes / 1e6:.0f} MB"
