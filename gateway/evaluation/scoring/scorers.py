"""All scorers, and the two forms for them in a suite: `exact`, and `numeric: {tolerance: 0.1}`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from gateway.evaluation.scoring.judging import Judge, Semantic
from gateway.evaluation.scoring.measures import Cost, Latency, Tokens
from gateway.evaluation.scoring.retrieval import Ndcg, Quotes, Recall
from gateway.evaluation.scoring.texts import Exact, Label, Numeric, Regex, SchemaScorer
from gateway.evaluation.scoring.trajectories import Trajectory

MAX_SCORERS = 32

AnyScorer = Annotated[
    Exact
    | Label
    | Regex
    | Numeric
    | SchemaScorer
    | Semantic
    | Judge
    | Trajectory
    | Ndcg
    | Recall
    | Quotes
    | Latency
    | Tokens
    | Cost,
    Field(discriminator="type"),
]


def _from_short(written: Any) -> Any:
    """Return a scorer's fields from either form. Any other form is returned unchanged for validation."""
    if isinstance(written, str):
        return {"type": written}
    if isinstance(written, dict) and len(written) == 1 and "type" not in written:
        name, parameters = next(iter(written.items()))
        if parameters is None:
            return {"type": name}
        if isinstance(parameters, dict):
            return {"type": name, **parameters}
    return written


WrittenScorer = Annotated[AnyScorer, BeforeValidator(_from_short)]
Scorers = Annotated[list[WrittenScorer], Field(max_length=MAX_SCORERS)]
