"""Has a model make a plan: the prompt, the schema of the answer, and the parser of the answer.

An infer step without `after` works on the unused outputs of earlier steps. With `after`, it works on the named steps,
and with an empty `after`, on the request alone. Tool and retrieve steps have no dependencies, so they run in parallel.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pagantic_common.domain.errors import ErrorCode, Internal
from pagantic_common.domain.messages import Message, Role, ToolDefinition
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
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
    """Return the JSON Schema of a plan for this request, as text.

    The schema has the kinds of steps that `bounds` allows.
    """
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
    """Return the conversation that asks a model for a plan. The answer must satisfy `plan_schema`."""
    instructions, offered = (
        _INSTRUCTIONS.format(most=_most_steps(request, bounds)),
        _offered_kinds(request, tools, bounds),
    )
    if StepKind.TOOL in offered:
        instructions += _TOOL_LINES
        instructions += "".join(f"\n  {tool.name}: {tool.description}" for tool in tools[:MAX_PLANNED_TOOLS])
    if StepKind.RETRIEVE in offered:
        instructions += _RETRIEVE_LINE
    if StepKind.VALIDATE in offered:
        instructions += _VALIDATE_LINE
    task = json.dumps(last_user_text(request, ()), ensure_ascii=False)
    return (Message(Role.SYSTEM, content=instructions), Message(Role.USER, content=f"Task: {task}"))


def _offered_kinds(request: Request, tools: Sequence[ToolDefinition], bounds: PlanPolicy) -> set[StepKind]:
    """Return the step kinds, besides infer, that the deployment allows and the request can use."""
    useful = {
        StepKind.TOOL: bool(tools),
        StepKind.RETRIEVE: request.context is not None,
        StepKind.VALIDATE: not request.output.is_empty,
    }
    allowed = bounds.allowed_kinds
    return {kind for kind, is_useful in useful.items() if is_useful and (allowed is None or kind in allowed)}


def _most_steps(request: Request, bounds: PlanPolicy) -> int:
    """Return the maximum number of steps for the model to plan, excluding the context steps and an answering step."""
    return max(1, min(MAX_PLANNED_STEPS, bounds.max_steps - len(context_steps(request)) - 1))


def planned(request: Request, answer: str) -> Plan:
    """Parse the model's answer into a plan. Duplicate names are numbered, and unknown dependencies are dropped.

    The request's context steps come first. If the plan does not end in text, an answering step is added. Raises
    Internal (INFERENCE_MALFORMED_RESPONSE) if the answer is not a valid plan, for example because it was cut off.
    """
    try:
        document = parse_json(answer)
        said_steps, rationale = document["steps"], document["rationale"]
    except (JsonTextError, KeyError, TypeError):
        message = "the planner's answer is not a valid plan"
        raise Internal(message, code=ErrorCode.INFERENCE_MALFORMED_RESPONSE) from None
    steps = _linked(context_steps(request))
    for raw_step in said_steps:
        make = _STEP_MAKERS.get(raw_step.get("kind"), _infer_step)
        step = make(request, _unique(raw_step["name"], steps), raw_step, steps)
        if step is not None:
            steps.append(step)
    if not steps or steps[-1].kind not in CHECKED:
        task = _ANSWER_PROMPT.format(task=last_user_text(request, ()))
        answer_step = infer_step(request, _unique(_ANSWER, steps), {"prompt": task})
        steps.append(replace(answer_step, depends_on=_unused(steps)))
    return Plan(tuple(steps), trace=PlanTrace(Planner.MODEL, rationale))


def _infer_step(request: Request, name: str, said: Mapping[str, Any], before: Sequence[Step]) -> Step:
    after = said.get("after")
    if after is None:
        needed = _unused(before)
    else:
        earlier_names = {step.name for step in before}
        needed = tuple(dict.fromkeys(dependency for dependency in after if dependency in earlier_names))
    return replace(infer_step(request, name, {"prompt": said["prompt"]}), depends_on=needed)


def _tool_step(_request: Request, name: str, said: Mapping[str, Any], _before: Sequence[Step]) -> Step:
    parameters = {"tool": said["tool"], "arguments": said["arguments"]}
    return Step(name, StepKind.TOOL, parameters, input=Value(ValueKind.TEXT))


def _retrieve_step(request: Request, name: str, said: Mapping[str, Any], _before: Sequence[Step]) -> Step:
    query = Value(ValueKind.TEXT, text=said["query"])
    return Step(name, StepKind.RETRIEVE, retrieve_parameters(request), input=query)


def _validate_step(request: Request, name: str, _said: Mapping[str, Any], before: Sequence[Step]) -> Step | None:
    """Return a step that validates the latest text, or None if there is no text."""
    for step in reversed(before):
        if step.kind == StepKind.INFER:
            return Step(name, StepKind.VALIDATE, depends_on=(step.name,), output=request.output)
    return None


_StepMaker = Callable[[Request, str, Mapping[str, Any], Sequence[Step]], Step | None]
_STEP_MAKERS: Mapping[Any, _StepMaker] = MappingProxyType(
    {StepKind.TOOL: _tool_step, StepKind.RETRIEVE: _retrieve_step, StepKind.VALIDATE: _validate_step}
)


def _unique(name: str, before: Sequence[Step]) -> str:
    """Return a name, with a number appended if another step already has the name."""
    names = {step.name for step in before}
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(candidate for candidate in itertools.chain([name], numbered) if candidate not in names)


def _linked(steps: Sequence[Step]) -> list[Step]:
    """Make each step depend on the step before it.

    Once any step of a plan names a dependency, the plan has no implicit dependencies.
    """
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
    """Return the schema of a tool's arguments.

    A schema with references cannot be nested, so it is replaced with a schema that permits any object.
    """
    try:
        schema = parse_json(tool.parameters_json or "{}")
    except JsonTextError:
        schema = {}
    if not schema or not isinstance(schema, dict) or "$ref" in tool.parameters_json:
        return {"type": "object"}
    return {key: value for key, value in schema.items() if not key.startswith("$")}
