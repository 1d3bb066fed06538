"""Plans that a model makes: what it is asked, the schema of its answer, and the plan that the answer is.

An infer step without `after` works on everything that came before it and that no step has used yet; with `after` it
works on the steps named there, and with an empty one on the request alone. Tool and retrieve steps depend on nothing:
they run beside each other.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pagantic_common.domain.errors import ErrorCode, Internal
from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.messages import Message, Role, ToolDefinition
from services.orchestrator.core.conversation.prompt import last_user_text
from services.orchestrator.core.model.plan import Plan, PlanPolicy, PlanTrace, Step, StepKind, Value, ValueKind
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.plans.planning import Planner, context_steps, infer_step, retrieve_parameters
from services.orchestrator.core.plans.step_rules import CHECKED

MAX_PLANNED_STEPS = 5
MAX_PLAN_TOKENS = 800
MAX_PLANNED_TOOLS = 16
_ANSWER = "answer"
_ANSWER_PROMPT = "Answer the task with what is given: {task}"

_INSTRUCTIONS = """\
You split a task into at most {most} steps for a language model. Use as few steps as the task needs.
Answer as JSON: "rationale" in one short sentence, and "steps". Each step has a "kind" and a "name" of one word:
- infer: the model writes; "prompt" says what. It sees what the steps before it gave. "after" names the steps that it
  needs, where those are not all; steps that do not need each other run at the same time."""
_TOOL_LINES = '\n- tool: calls "tool" with "arguments"; a later infer step sees the result. There are:'
_RETRIEVE_LINE = '\n- retrieve: looks up "query" in the documents; a later infer step sees what was found.'
_VALIDATE_LINE = "\n- validate: checks the text of the infer step before it against the output that is asked for."

_NAME = {"type": "string", "pattern": "^[a-z]{1,16}$"}


def plan_schema(request: Request, tools: Sequence[ToolDefinition], bounds: PlanPolicy) -> str:
    """Return the JSON Schema of a plan for this request, as text: only steps that it can have under `bounds`."""
    schemas = [
        _step_schema(
            StepKind.INFER,
            {"prompt": {"type": "string", "minLength": 1, "maxLength": 160}},
            {"after": {"type": "array", "maxItems": MAX_PLANNED_STEPS, "items": _NAME}},
        )
    ]
    offered = _offered_kinds(request, tools, bounds)
    if StepKind.TOOL in offered:
        schemas += [
            _step_schema(StepKind.TOOL, {"tool": {"const": tool.name}, "arguments": _parameters_of(tool)})
            for tool in tools[:MAX_PLANNED_TOOLS]
        ]
    if StepKind.RETRIEVE in offered:
        schemas.append(_step_schema(StepKind.RETRIEVE, {"query": {"type": "string", "minLength": 1, "maxLength": 160}}))
    if StepKind.VALIDATE in offered:
        schemas.append(_step_schema(StepKind.VALIDATE, {}))
    properties = {
        "rationale": {"type": "string", "minLength": 1, "maxLength": 160},
        "steps": {
            "type": "array",
            "minItems": 1,
            "maxItems": _most_steps(request, bounds),
            "items": {"anyOf": schemas},
        },
    }
    return json.dumps(_closed(properties, properties))


def planner_messages(request: Request, tools: Sequence[ToolDefinition], bounds: PlanPolicy) -> tuple[Message, ...]:
    """Return the conversation that asks a model for a plan, to be answered under `plan_schema`."""
    asked, offered = _INSTRUCTIONS.format(most=_most_steps(request, bounds)), _offered_kinds(request, tools, bounds)
    if StepKind.TOOL in offered:
        asked += _TOOL_LINES
        asked += "".join(f"\n  {tool.name}: {tool.description}" for tool in tools[:MAX_PLANNED_TOOLS])
    if StepKind.RETRIEVE in offered:
        asked += _RETRIEVE_LINE
    if StepKind.VALIDATE in offered:
        asked += _VALIDATE_LINE
    task = json.dumps(last_user_text(request, ()), ensure_ascii=False)
    return (Message(Role.SYSTEM, content=asked), Message(Role.USER, content=f"Task: {task}"))


def _offered_kinds(request: Request, tools: Sequence[ToolDefinition], bounds: PlanPolicy) -> set[StepKind]:
    """Return the kinds beside infer that the model may plan: the deployment allows them, and they have a use."""
    useful = {
        StepKind.TOOL: bool(tools),
        StepKind.RETRIEVE: request.context is not None,
        StepKind.VALIDATE: not request.output.is_empty,
    }
    allowed = bounds.allowed_kinds
    return {kind for kind, is_useful in useful.items() if is_useful and (allowed is None or kind in allowed)}


def _most_steps(request: Request, bounds: PlanPolicy) -> int:
    """Return how many steps the model may plan: room is kept for what is retrieved, and for a step that answers."""
    return max(1, min(MAX_PLANNED_STEPS, bounds.max_steps - len(context_steps(request)) - 1))


def planned(request: Request, answer: str) -> Plan:
    """Parse the model's answer into a plan; number duplicate names, drop unknown dependencies.

    What is retrieved for the request comes first. A plan that does not end in text gets a step that answers. Raises
    Internal (INFERENCE_MALFORMED_RESPONSE) for an answer that was cut off.
    """
    try:
        found = parse_json(answer)
        said_steps, rationale = found["steps"], found["rationale"]
    except (JsonTextError, KeyError, TypeError):
        message = "the planner's answer is not a valid plan"
        raise Internal(message, code=ErrorCode.INFERENCE_MALFORMED_RESPONSE) from None
    steps = _linked(context_steps(request))
    for said in said_steps:
        if (step := _step_of(request, _unique(said["name"], steps), said, steps)) is not None:
            steps.append(step)
    if not steps or steps[-1].kind not in CHECKED:
        task = _ANSWER_PROMPT.format(task=last_user_text(request, ()))
        answer_step = infer_step(request, _unique(_ANSWER, steps), {"prompt": task})
        steps.append(replace(answer_step, depends_on=_unused(steps)))
    return Plan(tuple(steps), trace=PlanTrace(Planner.MODEL, rationale))


def _step_of(request: Request, name: str, said: Mapping[str, Any], before: Sequence[Step]) -> Step | None:
    """Return one step of the plan; None for a validation of nothing."""
    match said.get("kind", StepKind.INFER):
        case StepKind.TOOL:
            parameters = {"tool": said["tool"], "arguments": said["arguments"]}
            return Step(name, StepKind.TOOL, parameters, input=Value(ValueKind.TEXT))
        case StepKind.RETRIEVE:
            query = Value(ValueKind.TEXT, text=said["query"])
            return Step(name, StepKind.RETRIEVE, retrieve_parameters(request), input=query)
        case StepKind.VALIDATE:
            texts = [step.name for step in before if step.kind == StepKind.INFER]
            contract = request.output
            return Step(name, StepKind.VALIDATE, depends_on=(texts[-1],), output=contract) if texts else None
        case _:
            known = {step.name for step in before}
            after = said.get("after")
            needed = _unused(before) if after is None else tuple(dict.fromkeys(one for one in after if one in known))
            return replace(infer_step(request, name, {"prompt": said["prompt"]}), depends_on=needed)


def _unique(name: str, before: Sequence[Step]) -> str:
    """Return a name that no step has yet, numbered where it has to be."""
    names = {step.name for step in before}
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return name if name not in names else next(one for one in numbered if one not in names)


def _linked(steps: Sequence[Step]) -> list[Step]:
    """Return steps in which each names the one before it: a plan with any dependency is a graph."""
    before = [(), *((step.name,) for step in steps)]
    return [replace(step, depends_on=needed) for step, needed in zip(steps, before, strict=False)]


def _unused(steps: Sequence[Step]) -> tuple[str, ...]:
    used = {name for step in steps for name in step.depends_on}
    return tuple(step.name for step in steps if step.name not in used)


def _step_schema(
    kind: StepKind, needed: Mapping[str, Any], optional: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    required = {"kind": {"const": str(kind)}, "name": _NAME, **needed}
    return _closed({**required, **(optional or {})}, required)


def _closed(properties: Mapping[str, Any], required: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _parameters_of(tool: ToolDefinition) -> Any:
    """Return the schema of a tool's arguments; any object where it refers to itself, for it is nested here."""
    try:
        schema = parse_json(tool.parameters_json) if tool.parameters_json else {}
    except JsonTextError:
        schema = {}
    is_plain = isinstance(schema, dict) and schema and "$ref" not in tool.parameters_json
    return {key: value for key, value in schema.items() if not key.startswith("$")} if is_plain else {"type": "object"}
