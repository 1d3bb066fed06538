"""The checks at a request's admission, including checks of caller-run tools."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.ids import check_tool_name, is_trace_id, require_id
from pagantic_common.domain.messages import (
    Message,
    Role,
    ToolChoice,
    ToolDefinition,
    check_last_is_shown,
    check_messages,
    check_turn,
    count_images,
)
from pagantic_common.domain.sampling import check_sampling_value, parse_options
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from services.orchestrator.core.model.contract import OutputContract, RetryPolicy, Rule, SchemaInPrompt
from services.orchestrator.core.model.plan import Plan
from services.orchestrator.core.model.request import Hints, Mode, Reasoning, Request, VariantChoice
from services.orchestrator.core.model.retrieval import ContextPolicy
from services.orchestrator.core.model.voting import Voting

MAX_CLIENT_TOOLS = 128
MAX_REPLICAS = 16
MAX_MODEL_CHARS = 200
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_BIASED_TOKENS = 1024
MAX_LOGIT_BIAS = 100
MAX_TOP_LOGPROBS = 20
MAX_PRIORITY = 10
MAX_TIMEOUT_S = 366 * 86_400.0  # Clocks cannot represent much longer timeouts.
MAX_RULES = 100
MAX_RULE_NAME_CHARS = 200
MAX_METADATA = 64
# total size of all metadata values, in bytes of UTF-8
MAX_METADATA_BYTES = 64 * 1024
# the contract's names for fields with a different name here
_FIELD_NAMES = {"tool_policy": "tool_rules"}
_SCHEMA_SWITCHES = ("decoder_constraint", "repair_allowed", "schema_in_prompt")  # fields of OutputContract


def check_request(request: Request) -> None:
    """Raise InvalidRequest if the request cannot be admitted.

    The check runs before any execution starts.
    """
    _check_ids(request)
    _check_input(request)
    if request.prompt.template is not None:
        require_id("prompt.template.name", request.prompt.template.name)
    _check_hints(request.hints)
    if request.hints.top_logprobs is not None and request.mode in (Mode.PLAN, Mode.REDUNDANT):
        raise InvalidRequest(f"mode {request.mode} reports no log-probabilities: leave hints.top_logprobs unset")
    if request.context is not None:
        _check_context(request.context)
    _check_rules(request.rules)
    if wrong := request.retry.objection:
        raise InvalidRequest(f"retry.{wrong}")
    _check_output(request.output)
    _check_switches(request)
    _check_citations(request)
    _check_client_tools(request)
    if unused := _unused_field(request):
        raise InvalidRequest(unused)
    _check_choice(request.choice)
    if request.mode is Mode.REDUNDANT:
        _check_voting(request)
    if request.plan is not None:
        _check_plan_inputs(request.plan)
    _check_replay(request)


def _check_replay(request: Request) -> None:
    if request.replay is None:
        return
    request.replay.check()
    if request.session_id:
        raise InvalidRequest(
            "a replay is no turn of a conversation: leave session_id empty; what was remembered is in the record"
        )


def _check_input(request: Request) -> None:
    if request.text_prompt:
        _check_text_prompt(request)
    elif request.mode is Mode.DECIDE:
        check_messages(request.messages)
        check_last_is_shown(request.messages)
        if count_images(request.messages):
            raise InvalidRequest("mode DECIDE reads text alone: leave the images out, or use STRUCTURED")
        _check_decisions(request)
    else:
        check_turn(request.messages)


def _check_text_prompt(request: Request) -> None:
    if request.mode is not Mode.CHAT:
        raise InvalidRequest(f"mode {request.mode} reads messages: send these in place of text_prompt, or use CHAT")
    hints = replace(request.hints, tool_choice=ToolChoice(), max_tool_rounds=0, reasoning=Reasoning())
    used = Request(
        request.request_id,
        request.mode,
        messages=(),
        trace_id=request.trace_id,
        hints=hints,
        output=request.output,
        rules=request.rules,
        semantic_intent=request.semantic_intent,
        retry=request.retry,
        tenant=request.tenant,
        subject=request.subject,
        is_background=request.is_background,
        text_prompt=request.text_prompt,
        choice=request.choice,
    )
    if name := _first_difference(request.hints, hints):
        raise InvalidRequest(f"text_prompt is continued as it is: leave hints.{name} unset, or send messages")
    if name := _first_difference(request, used):
        raise InvalidRequest(
            f"text_prompt is continued as it is: leave {name} unset, or send messages without text_prompt"
        )
    if request.output.citations is not None:
        raise InvalidRequest("text_prompt has no sources to quote: leave output.citations unset, or send messages")
    if request.output.schema_in_prompt is SchemaInPrompt.ON:
        raise InvalidRequest(
            "nothing is added to text_prompt: leave output.schema_in_prompt unset, or write the schema into the text"
        )


def _first_difference(sent: Request | Hints, used: Request | Hints) -> str:
    """Return the contract's name of the first field that differs, or an empty string if all fields are equal."""
    names = [field.name for field in fields(sent) if getattr(sent, field.name) != getattr(used, field.name)]
    if not names:
        return ""
    return _FIELD_NAMES.get(names[0], names[0])


def _check_decisions(request: Request) -> None:
    if request.decisions is None:
        raise InvalidRequest("mode DECIDE answers questions: set decisions.questions")
    request.decisions.check("decisions")


def _check_plan_inputs(plan: Plan) -> None:
    for step in plan.steps:
        if step.input is not None and not all(map(math.isfinite, step.input.scores)):
            raise InvalidRequest(f"step {step.name[:64]!r}: input has a score that is not a finite number")


def _check_ids(request: Request) -> None:
    require_id("request_id", request.request_id)
    if request.session_id:
        require_id("session_id", request.session_id)
    if request.trace_id and not is_trace_id(request.trace_id):
        raise InvalidRequest(f"trace_id {request.trace_id[:64]!r} is not 32 lower-case hex digits")


def _check_client_tools(request: Request) -> None:
    if request.client_tools and request.mode not in (Mode.CHAT, Mode.STRUCTURED):
        raise InvalidRequest(f"mode {request.mode} calls no tools of the caller: leave client_tools empty")
    check_client_tools(request.client_tools, request.tools)


def _check_choice(choice: VariantChoice) -> None:
    if choice.named is not None and not choice.takes_part:
        raise InvalidRequest("variant names an experiment: leave without_experiments unset, or variant")


def _check_output(output: OutputContract) -> None:
    has_grammar = bool(output.grammar or output.grammar_name)
    if has_grammar and not output.decoder_constraint:
        raise InvalidRequest("a grammar binds the decoder: leave output.decoder_constraint on, or the grammar out")


def _check_switches(request: Request) -> None:
    """Raise InvalidRequest if a switch of an output contract has no effect."""
    has_conditions = bool(request.rules or request.semantic_intent)
    _check_switches_of(request.output, "output", is_validated=has_conditions or not request.output.is_empty)
    steps = request.plan.steps if request.plan is not None else ()
    for number, step in enumerate(steps):
        is_final = number == len(steps) - 1
        is_validated = not step.output.is_empty or (is_final and has_conditions)
        _check_switches_of(step.output, f"step {step.name[:64]!r}: output", is_validated=is_validated)


def _check_switches_of(output: OutputContract, field: str, *, is_validated: bool) -> None:
    if not output.strict_validation and not is_validated:
        raise InvalidRequest(
            f"{field}.strict_validation is off, and nothing is validated: send a schema, a grammar, citations, rules "
            "or semantic_intent, or leave it unset"
        )
    if output.shown_schema_json:
        return
    changed = [name for name in _SCHEMA_SWITCHES if getattr(output, name) != getattr(OutputContract(), name)]
    if changed:
        raise InvalidRequest(
            f"{field}.{changed[0]} is about a schema, and there is none: send a schema or citations, or leave it unset"
        )


def _check_citations(request: Request) -> None:
    output = request.output
    plan_steps = request.plan.steps if request.plan is not None else ()
    if any(step.output.citations is not None for step in plan_steps):
        raise InvalidRequest("a step of a plan gives no citations: leave output.citations unset, and use CHAT")
    if output.citations is None:
        return
    if request.mode not in (Mode.CHAT, Mode.STRUCTURED):
        raise InvalidRequest(f"mode {request.mode} gives no citations: leave output.citations unset, or use CHAT")
    if output.schema_json or output.grammar or output.grammar_name:
        raise InvalidRequest(
            "output.citations has a form of its own: leave output.schema_json and the grammar empty, or citations unset"
        )
    if request.context is None:
        raise InvalidRequest("output.citations quotes retrieved context: name a collection in context")
    output.citations.check("output.citations")


def _unused_field(request: Request) -> str:
    """Return the reason that a set field has no effect in the request's mode.

    Returns an empty string if every set field has an effect.
    """
    mode = request.mode
    if request.plan is not None and mode is not Mode.PLAN:
        return f"mode {mode} runs no plan: leave plan unset, or use PLAN"
    if request.voting != Voting() and mode is not Mode.REDUNDANT:
        return f"mode {mode} counts no votes: leave voting unset, or use REDUNDANT"
    if request.decisions is not None and mode is not Mode.DECIDE:
        return f"mode {mode} makes no decisions: leave decisions unset, or use DECIDE"
    return _UNUSED_IN[mode](request)


def _unused_by_decide(request: Request) -> str:
    used = Request(
        request.request_id,
        request.mode,
        request.messages,
        trace_id=request.trace_id,
        prompt=request.prompt,
        hints=Hints(model=request.hints.model, timeout_s=request.hints.timeout_s),
        tenant=request.tenant,
        subject=request.subject,
        decisions=request.decisions,
        choice=request.choice,
    )
    name = _first_difference(request, used)
    if not name:
        return ""
    return (
        f"mode DECIDE decides on the messages alone, and decodes nothing: leave {name} unset; of the hints it takes "
        "model and timeout"
    )


def _unused_by_chat(request: Request) -> str:
    if request.retry != RetryPolicy() and not request.is_validated:
        return (
            "mode CHAT tries again after a failed validation, and nothing is validated: send output, rules or "
            "semantic_intent, or leave retry unset"
        )
    return _unused_rounds(request)


def _unused_by_structured(request: Request) -> str:
    hints = request.hints
    if not (request.tools or request.client_tools) and (hints.tool_choice.is_enforced or hints.max_tool_rounds):
        return (
            "mode STRUCTURED offers only the tools that are named: name them in tools, or leave hints.tool_choice and "
            "hints.max_tool_rounds unset"
        )
    return _unused_rounds(request)


def _unused_rounds(request: Request) -> str:
    if request.hints.max_tool_rounds and not request.may_call_tools:
        return "no tool can be called: leave hints.max_tool_rounds unset, or hints.tool_choice"
    return ""


def _unused_by_vote(request: Request) -> str:
    if request.retry != RetryPolicy():
        return "mode REDUNDANT votes instead of trying again: leave retry unset"
    if request.hints.tool_choice.is_enforced or request.hints.max_tool_rounds:
        return "mode REDUNDANT calls no tools: leave hints.tool_choice and hints.max_tool_rounds unset"
    if request.tool_policy.rules:
        return "mode REDUNDANT calls no tools: leave tool_rules empty"
    return ""


def _unused_by_plan(request: Request) -> str:
    policy = request.context
    if request.hints.tool_choice != ToolChoice():
        return "mode PLAN takes tool_choice as a parameter of its infer steps: leave hints.tool_choice unset"
    if policy is None:
        return ""
    if request.plan is not None:
        return "the plan retrieves what it needs: leave context unset, or give the plan a retrieve step"
    return _unused_by_retrieve_step(policy)


def _unused_by_retrieve_step(policy: ContextPolicy) -> str:
    is_laid_out = policy.is_after_system or policy.is_system or policy.max_tokens
    if policy.includes_tools or policy.includes_schema or is_laid_out:
        return (
            "mode PLAN lays out no context message: leave context.include_tools, include_schema, placement, role and "
            "max_tokens unset"
        )
    if policy.query_expansion is not None or policy.answerability is not None:
        return "mode PLAN retrieves by steps of its plan: leave context.query_expansion and context.answerability unset"
    return ""


_UNUSED_IN: Mapping[Mode, Callable[[Request], str]] = MappingProxyType(
    {
        Mode.CHAT: _unused_by_chat,
        Mode.STRUCTURED: _unused_by_structured,
        Mode.PLAN: _unused_by_plan,
        Mode.REDUNDANT: _unused_by_vote,
        Mode.DECIDE: _unused_by_decide,
    }
)


def _check_voting(request: Request) -> None:
    voting = request.voting
    if not 1 <= voting.n <= MAX_REPLICAS:
        raise InvalidRequest(f"voting.n is {voting.n}: it must be between 1 and {MAX_REPLICAS}, or 0 for 3")
    if not 0 <= voting.min_agreement <= 1:
        raise InvalidRequest(f"voting.min_agreement is {voting.min_agreement}: it must be between 0 and 1")
    if request.tools:
        raise InvalidRequest("mode REDUNDANT runs no tools: leave tools empty")


def _check_hints(hints: Hints) -> None:
    _check_model("hints.model", hints.model)
    if hints.max_tokens < 0 or hints.max_tool_rounds < 0:
        raise InvalidRequest("hints.max_tokens and hints.max_tool_rounds must not be negative")
    if hints.timeout_s is not None and not 0 < hints.timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequest(
            f"hints.timeout is {hints.timeout_s:g} s: it must be positive and at most {MAX_TIMEOUT_S:g} s"
        )
    for name, value in {"temperature": hints.temperature, "top_p": hints.top_p, **hints.sampling}.items():
        if value is not None:
            check_sampling_value(f"hints.{name}", name, value)
    _check_stop(hints.stop)
    _check_engine_hints(hints)
    parse_options("hints.options_json", hints.options_json)


def _check_model(field: str, alias: str) -> None:
    if len(alias) > MAX_MODEL_CHARS or not alias.isprintable():
        raise InvalidRequest(f"{field} must be a model's alias: at most {MAX_MODEL_CHARS} printable characters")


def _check_context(policy: ContextPolicy) -> None:
    if policy.min_score is not None and not math.isfinite(policy.min_score):
        raise InvalidRequest(f"context.min_score is {policy.min_score}: it must be a finite number")
    if policy.max_tokens < 0 or policy.top_k < 0:
        raise InvalidRequest("context.max_tokens and context.rerank.top_k must not be negative")
    if wrong := policy.objection:
        raise InvalidRequest(f"context.{wrong}")
    if policy.query_expansion is not None:
        _check_model("context.query_expansion.model", policy.query_expansion.model)
    if policy.answerability is not None:
        _check_model("context.answerability.model", policy.answerability.model)


def _check_rules(rules: Sequence[Rule]) -> None:
    """Check the number and the names of the rules without parsing their expressions."""
    if len(rules) > MAX_RULES:
        raise InvalidRequest(f"rules has {len(rules)} entries: it takes at most {MAX_RULES}")
    names = [rule.name for rule in rules]
    for rule in rules:
        if not 1 <= len(rule.name) <= MAX_RULE_NAME_CHARS:
            raise InvalidRequest(
                f"rules has a name of {len(rule.name)} characters: each needs 1 to {MAX_RULE_NAME_CHARS}"
            )
        if names.count(rule.name) > 1:
            raise InvalidRequest(f"rules has {rule.name!r} more than once: names must differ")
        if not rule.expression and not rule.builtin_kind:
            raise InvalidRequest(f"rule {rule.name!r} is empty: give it an expression or a builtin")


def _check_stop(stop: Sequence[str]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequest(f"hints.stop has {len(stop)} texts: it takes at most {MAX_STOP_STRINGS}")
    for text in stop:
        if not 1 <= len(text.encode()) <= MAX_STOP_BYTES:
            raise InvalidRequest(
                f"hints.stop has a text of {len(text.encode())} bytes: each must have 1 to {MAX_STOP_BYTES}"
            )


def _check_engine_hints(hints: Hints) -> None:
    if len(hints.logit_bias) > MAX_BIASED_TOKENS:
        raise InvalidRequest(
            f"hints.logit_bias has {len(hints.logit_bias)} tokens, at most {MAX_BIASED_TOKENS} are taken"
        )
    for token, bias in hints.logit_bias.items():
        if token < 0:
            raise InvalidRequest(f"hints.logit_bias names token {token}: tokens are numbered from 0")
        if not abs(bias) <= MAX_LOGIT_BIAS:
            raise InvalidRequest(f"hints.logit_bias of token {token} is {bias:g}: it must be between -100 and 100")
    if hints.top_logprobs is not None and not 0 <= hints.top_logprobs <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"hints.top_logprobs is {hints.top_logprobs}: it must be between 0 and {MAX_TOP_LOGPROBS}")
    if not -MAX_PRIORITY <= hints.priority <= 0:
        raise InvalidRequest(f"hints.priority is {hints.priority}: it must be between -{MAX_PRIORITY} and 0")
    if hints.reasoning.max_tokens < 0:
        raise InvalidRequest("hints.reasoning.max_tokens must not be negative")


def check_configuration(request: Request) -> None:
    """Raise InvalidRequest if a schema is missing or malformed. PREPARE makes this check."""
    if request.mode in (Mode.STRUCTURED, Mode.REDUNDANT) and not request.output.shown_schema_json:
        raise InvalidRequest(
            f"mode {request.mode} needs output.schema_json: send a JSON Schema", code=ErrorCode.CONFIG_SCHEMA_REQUIRED
        )
    if request.output.schema_json:
        try:
            schema = parse_json(request.output.schema_json)
        except JsonTextError as error:
            raise InvalidRequest(f"output.schema_json is not JSON: {error}") from None
        if not isinstance(schema, dict | bool):
            raise InvalidRequest("output.schema_json is not a JSON Schema: it must be an object or a boolean")


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise InvalidRequest if the metadata cannot be stored."""
    for key in metadata:
        require_id("metadata key", key)
    used_bytes = sum(len(value.encode()) for value in metadata.values())
    if len(metadata) > MAX_METADATA or used_bytes > MAX_METADATA_BYTES:
        raise InvalidRequest(
            f"metadata has {len(metadata)} values of {used_bytes} bytes: at most {MAX_METADATA} of "
            f"{MAX_METADATA_BYTES} bytes in all are kept"
        )


def check_client_tools(tools: Sequence[ToolDefinition], registered: Sequence[str]) -> None:
    """Raise InvalidRequest if there are too many tools, a definition is invalid, or two tools have the same name."""
    if len(tools) > MAX_CLIENT_TOOLS:
        raise InvalidRequest(f"client_tools has {len(tools)} entries: it takes at most {MAX_CLIENT_TOOLS}")
    names = set(registered)
    for tool in tools:
        check_tool_name(tool.name)
        if tool.name in names:
            raise InvalidRequest(f"tool name {tool.name!r} appears twice in client_tools and tools: names must differ")
        names.add(tool.name)
        _check_parameters(tool)


def _check_parameters(tool: ToolDefinition) -> None:
    if not tool.parameters_json:
        return
    where = f"parameters_json of client tool {tool.name!r}"
    try:
        schema = parse_json(tool.parameters_json, is_rewritable=True)
    except JsonTextError as error:
        raise InvalidRequest(f"{where} is not JSON: {error}") from None
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise InvalidRequest(f"{where} must be a JSON Schema of type object")


def check_results(history: Sequence[Message], turn: Sequence[Message]) -> None:
    """Raise InvalidRequest if the results of calls are missing.

    Results are missing if a conversation ends with calls and the turn does not begin with their results.
    """
    owed: dict[str, str] = {}
    for message in history:
        if not message.is_shown:
            continue
        if message.role is not Role.TOOL:  # A message that continues without the results ends the wait.
            owed = {call.id: call.name for call in message.tool_calls}
        owed.pop(message.tool_call_id, None)
    for message in turn:
        if message.is_shown and message.role not in (Role.SYSTEM, Role.TOOL):
            break
        owed.pop(message.tool_call_id, None)
    if owed:
        calls = ", ".join(f"{call_id!r} ({name})" for call_id, name in owed.items())
        raise InvalidRequest(
            f"the conversation waits for the results of calls {calls}: begin messages with them, with the role TOOL"
        )
