"""The parameters of lists of OpenAI's API."""

from __future__ import annotations

from gateway.http.document.operations import Parameter
from gateway.http.openai.pages import MAX_PAGE


def page_parameters(order: str) -> tuple[Parameter, ...]:
    """Return the parameters of a list that has this order if a query says nothing else."""
    return (
        Parameter("after", {"type": "string"}, "The id of the last object of the page before."),
        Parameter("limit", {"type": "integer", "minimum": 0, "maximum": MAX_PAGE}, "Most objects; 0 is 20."),
        Parameter("order", {"enum": ["asc", "desc"], "default": order}, "By time, up or down."),
    )
