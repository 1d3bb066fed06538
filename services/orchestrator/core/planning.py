"""Planners: what plan a request gets that brings none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from pagantic_common.domain.errors import ErrorCode, Internal
from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.messages import Message, Role
from services.orchestrator.core.plan import RETRIEVERS, Plan, PlanTrace, Step, StepKind
from services.orchestrator.core.prompt import last_user_text
from services.orchestrator.core.request import Request

MAX_PLANNED_STEPS = 5
MAX_PLAN_TOKENS = 600
_RETRIEVER_PREFIX = "RETRIEVER_"

_INSTRUCTIONS = """\
You split a task into steps for a language model, one after the other; each step sees what the step before it gave.
Answer as JSON: "rationale" in one short sentence, and "steps", at most {most}. A step has a "name" of one word and a
"prompt" that says what to do. Use as few steps as the task needs."""


class Planner(StrEnum):
    """Who makes plans."""

    STATIC = "static"
    MODEL = "model"


PLAN_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "rationale": {"type": "string", "minLength": 1, "maxLength": 160},
            "steps": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_PLANNED_STEPS,
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "pattern": "^[a-z]{1,16}$"},
                        "prompt": {"type": "string", "minLength": 1, "maxLength": 160},
                    },
                    "required": ["name", "prompt"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["rationale", "steps"],
        "additionalProperties": False,
    }
)


def static_plan(request: Request) -> Plan:
    """Return the plan of the request's shape: retrieve and rerank where it asks for context, then infer."""
    steps = (*_context_steps(request), _infer_step(request, "answer", {}))
    return Plan(steps, trace=PlanTrace(Planner.STATIC, "the template for what the request asks for"))


def made_at(plan: Plan, moment: datetime) -> Plan:
    """Return the plan with the time when it was made."""
    return replace(plan, trace=replace(plan.trace, created_at=moment))


def planner_messages(request: Request) -> tuple[Message, ...]:
    """Return the conversation that asks a model for a plan, to be answered under PLAN_SCHEMA."""
    task = json.dumps(last_user_text(request, ()), ensure_ascii=False)
    return (
        Message(Role.SYSTEM, content=_INSTRUCTIONS.format(most=MAX_PLANNED_STEPS)),
        Message(Role.USER, content=f"Task: {task}"),
    )


def planned(request: Request, answer: str) -> Plan:
    """Return the plan that a model's answer is; names that come twice are numbered.

    The first step sees the request, and what was retrieved for it. Raises Internal (INFERENCE_MALFORMED_RESPONSE) for
    an answer that was cut off.
    """
    try:
        found = parse_json(answer)
    except JsonTextError:
        raise Internal("the planner's answer is no plan", code=ErrorCode.INFERENCE_MALFORMED_RESPONSE) from None
    steps: list[Step] = list(_context_steps(request))
    names = {step.name for step in steps}
    for number, step in enumerate(found["steps"], start=1):
        name = step["name"] if step["name"] not in names else f"{step['name']}-{number}"
        names.add(name)
        steps.append(_infer_step(request, name, {"prompt": step["prompt"]}))
    return Plan(tuple(steps), trace=PlanTrace(Planner.MODEL, found["rationale"]))


def _infer_step(request: Request, name: str, parameters: Mapping[str, Any]) -> Step:
    tools = {"tools": list(request.tools)} if request.tools else {}
    return Step(name, StepKind.INFER, {**parameters, **tools})


def _context_steps(request: Request) -> tuple[Step, ...]:
    policy = request.context
    if policy is None:
        return ()
    wanted = policy.retriever.removeprefix(_RETRIEVER_PREFIX).lower()
    parameters: dict[str, Any] = {
        "collection": policy.collection,
        "max_chunks": max(0, policy.max_chunks),  # 0 and less are all
        "retriever": wanted if wanted in RETRIEVERS else RETRIEVERS[0],
    }
    score = {} if policy.min_score is None else {"min_score": policy.min_score}
    if policy.scorer is None:
        return (Step("retrieve", StepKind.RETRIEVE, {**parameters, **score}),)
    ranking = {"scorer": policy.scorer, "top_k": policy.top_k, **score}
    return (Step("retrieve", StepKind.RETRIEVE, parameters), Step("rerank", StepKind.RERANK, ranking))
