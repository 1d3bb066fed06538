"""Planners: what plan a request gets that brings none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from services.orchestrator.core.model.plan import Plan, PlanTrace, Step, StepKind
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.plans.step_rules import RETRIEVERS

_RETRIEVER_PREFIX = "RETRIEVER_"


class Planner(StrEnum):
    """Who makes plans."""

    STATIC = "static"
    MODEL = "model"


def static_plan(request: Request) -> Plan:
    """Return the plan of the request's shape: retrieve and rerank where it asks for context, then infer."""
    steps = (*context_steps(request), infer_step(request, "answer", {}))
    return Plan(steps, trace=PlanTrace(Planner.STATIC, "the template for what the request asks for"))


def made_at(plan: Plan, moment: datetime) -> Plan:
    """Return the plan with the time when it was made."""
    return replace(plan, trace=replace(plan.trace, created_at=moment))


def infer_step(request: Request, name: str, parameters: Mapping[str, Any]) -> Step:
    """Return an infer step with the tools that the request names."""
    tools = {"tools": list(request.tools)} if request.tools else {}
    return Step(name, StepKind.INFER, {**parameters, **tools})


def retrieve_parameters(request: Request) -> dict[str, Any]:
    """Return the parameters of a retrieve step for the request's context; there must be one."""
    policy = request.context
    if policy is None:
        raise ValueError("the request asks for no context")
    wanted = policy.retriever.removeprefix(_RETRIEVER_PREFIX).lower()
    parameters: dict[str, Any] = {
        "collection": policy.collection,
        "max_chunks": max(0, policy.max_chunks),  # 0 and less are all
        "retriever": wanted if wanted in RETRIEVERS else RETRIEVERS[0],
    }
    is_reranked = policy.scorer is not None
    score = {} if policy.min_score is None or is_reranked else {"min_score": policy.min_score}
    return parameters | score


def context_steps(request: Request) -> tuple[Step, ...]:
    """Return the steps that retrieve, and rerank, what the request asks for; none without context."""
    policy = request.context
    if policy is None:
        return ()
    retrieve = Step("retrieve", StepKind.RETRIEVE, retrieve_parameters(request))
    if policy.scorer is None:
        return (retrieve,)
    score = {} if policy.min_score is None else {"min_score": policy.min_score}
    ranking = {"scorer": policy.scorer, "top_k": policy.top_k, **score}
    return (retrieve, Step("rerank", StepKind.RERANK, ranking))
