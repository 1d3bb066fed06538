"""The static planner, and the steps shared by all planners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from services.orchestrator.core.model.plan import Plan, PlanTrace, Step, StepKind
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.plans.ranking import ranking_parameters
from services.orchestrator.core.plans.step_rules import NAME_OF_RETRIEVER, RETRIEVERS


class Planner(StrEnum):
    """The planner of the deployment, which returns a fixed plan or has a model make a plan."""

    STATIC = "static"
    MODEL = "model"


def static_plan(request: Request) -> Plan:
    """Return the fixed plan: retrieve and rerank if the request has a context policy, and then infer the answer."""
    steps = (*context_steps(request), infer_step(request, "answer", {}))
    return Plan(steps, trace=PlanTrace(Planner.STATIC, "the template for what the request asks for"))


def made_at(plan: Plan, moment: datetime) -> Plan:
    """Return the plan with a creation time."""
    return replace(plan, trace=replace(plan.trace, created_at=moment))


def infer_step(request: Request, name: str, parameters: Mapping[str, Any]) -> Step:
    """Return an infer step with the tools that the request names."""
    if not request.tools:
        return Step(name, StepKind.INFER, parameters)
    return Step(name, StepKind.INFER, {**parameters, "tools": list(request.tools)})


def retrieve_parameters(request: Request) -> dict[str, Any]:
    """Return the parameters of a retrieve step for the request's context.

    The request must have a context policy.
    """
    policy = request.context
    if policy is None:
        raise ValueError("the request asks for no context")
    parameters: dict[str, Any] = {
        "collection": policy.collection,
        "max_chunks": max(0, policy.max_chunks),  # 0 or less means all chunks
        "retriever": NAME_OF_RETRIEVER.get(policy.retriever, RETRIEVERS[0]),
    }
    if policy.min_score is not None and policy.scorer is None:  # With a scorer, min_score is a parameter of rerank.
        parameters["min_score"] = policy.min_score
    return parameters


def context_steps(request: Request) -> tuple[Step, ...]:
    """Return the steps that retrieve and rerank the request's context.

    Returns no steps if the request has no context policy.
    """
    policy = request.context
    if policy is None:
        return ()
    retrieve = Step("retrieve", StepKind.RETRIEVE, retrieve_parameters(request))
    if policy.scorer is None:
        return (retrieve,)
    ranking: dict[str, Any] = {"scorer": policy.scorer, "top_k": policy.top_k, **ranking_parameters(policy.ranking)}
    if policy.min_score is not None:
        ranking["min_score"] = policy.min_score
    return (retrieve, Step("rerank", StepKind.RERANK, ranking))
