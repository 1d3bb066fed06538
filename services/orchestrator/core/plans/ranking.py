"""Checks and converts the parameters of rerank steps that fuse scores and diversify the chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.orchestrator.core.model.retrieval import RankingOptions, ScoreFusion, WeightedScorer

_TYPES: Mapping[str, tuple[type, ...]] = {"scorer": (str,), "weight": (int, float), "model": (str,)}


def check_ranking(parameters: Mapping[str, Any]) -> str:
    """Return the reason that well-typed parameters are invalid, or an empty string if they are valid."""
    if parameters.get("fusion", ScoreFusion.WEIGHTED) not in tuple(ScoreFusion):
        return f"has a 'fusion' that is not known; there are {', '.join(ScoreFusion)}"
    if parameters.get("scorer") and parameters.get("scorers"):
        return "has both 'scorer' and 'scorers': it takes one of them"
    if not all(_is_scorer(scorer) for scorer in parameters.get("scorers", [])):
        return "has 'scorers' that are not objects of scorer, weight and model"
    return ""


def ranking_options(parameters: Mapping[str, Any]) -> RankingOptions:
    """Return the ranking options in checked parameters."""
    scorers = tuple(WeightedScorer(**scorer) for scorer in parameters.get("scorers", []))
    return RankingOptions(
        scorers,
        ScoreFusion(parameters.get("fusion", ScoreFusion.WEIGHTED)),
        parameters.get("diversity", 0.0),
        parameters.get("max_per_source", 0),
    )


def ranking_parameters(options: RankingOptions) -> dict[str, Any]:
    """Return the parameters for ranking options, omitting unset options."""
    parameters: dict[str, Any] = {}
    if options.scorers:
        parameters["scorers"] = [_scorer_parameters(scorer) for scorer in options.scorers]
    if options.fusion is not ScoreFusion.WEIGHTED:
        parameters["fusion"] = options.fusion.value
    if options.diversity:
        parameters["diversity"] = options.diversity
    if options.max_per_source:
        parameters["max_per_source"] = options.max_per_source
    return parameters


def _scorer_parameters(scorer: WeightedScorer) -> dict[str, Any]:
    parameters: dict[str, Any] = {"scorer": scorer.scorer}
    if scorer.weight is not None:
        parameters["weight"] = scorer.weight
    if scorer.model:
        parameters["model"] = scorer.model
    return parameters


def _is_scorer(value: Any) -> bool:
    if not isinstance(value, dict) or "scorer" not in value or not value.keys() <= _TYPES.keys():
        return False
    return all(isinstance(part, _TYPES[name]) and not isinstance(part, bool) for name, part in value.items())
