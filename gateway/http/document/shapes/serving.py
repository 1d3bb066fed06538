"""The shapes of answers about the models of a machine, and of changes that give nothing."""

from __future__ import annotations

from gateway.http.document.shapes.shape import AnswerShape


class Done(AnswerShape):
    """The request was carried out."""


class ModelOfPull(AnswerShape):
    """A pulled model."""

    name: str
    size_bytes: int
    context_tokens: int
    capabilities: list[str]
    license: str
    pulled_at: str


class ModelOfCatalog(AnswerShape):
    """A model that `pagantic pull` knows by a short name."""

    name: str
    title: str
    size_bytes: int
    context_tokens: int
    license: str


class ModelsOfMachine(AnswerShape):
    """The pulled models of a machine, and the catalog."""

    pulled: list[ModelOfPull]
    catalog: list[ModelOfCatalog]
