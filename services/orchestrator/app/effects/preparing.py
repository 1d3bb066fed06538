"""PREPARE: finds out what a run works with before its first inference."""

from __future__ import annotations

from pagantic_common.domain.errors import (
    ErrorCode,
    InvalidRequest,
    PaganticError,
    PermissionDenied,
)
from pagantic_common.domain.messages import Message, ToolDefinition
from services.orchestrator.app.effects.remembering import MAX_RECALLED_BYTES, Memory
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.failures import failure_from, is_outage
from services.orchestrator.core.conversation.memory import Eviction
from services.orchestrator.core.conversation.prompt import (
    MAX_AUTO_SCHEMA_BYTES,
    context_message,
    is_schema_left_out,
    last_user_text,
)
from services.orchestrator.core.conversation.retrieval import retrieval_confidence
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.commands import Prepare
from services.orchestrator.core.execution.run import Run
from services.orchestrator.core.model.plan import tools_of
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.request import Request, check_configuration
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.ports.services import BuiltContext, CompiledConstraint

MAX_NAMED_KEYWORDS = 8  # in a warning


async def prepare(run: Run, _command: Prepare, scope: RunScope) -> Prepared:
    """Resolve the system prompt, history, constraint, tools and context; what cannot be raises PaganticError."""
    request = run.request
    check_configuration(request)
    if request.rules:
        await scope.services.constraint.compile_rules(request)
    system_prompt = await _system_prompt(scope, request)
    first, history = await _history(scope, request)
    if run.plan is not None:  # only a run in mode PLAN has one
        tools = await _plan_tools(scope, request, tools_of(run.plan))
        return await Memory(scope).recall(request, Prepared(system_prompt=system_prompt, tools=tools), history, first)
    compiled = CompiledConstraint("", is_fully_enforced=False)
    if request.output.decoder_constraint and not request.output.is_empty:
        compiled = await scope.services.constraint.compile(request.output)
    tools, away = await _offered_tools(scope, request) if request.offers_tools else ((), ())
    retrieved, confidence, lost = await _retrieve(scope, request, history)
    prepared = Prepared(
        system_prompt=system_prompt,
        context_message=context_message(request, retrieved, tools),
        retrieval_confidence=confidence,
        tools=tools,
        engine_text=compiled.engine_text,
        is_fully_enforced=compiled.is_fully_enforced,
        warnings=(*_schema_warnings(request), *_decoder_warnings(compiled), *away, *lost),
    )
    return await Memory(scope).recall(request, prepared, history, first)


async def _history(scope: RunScope, request: Request) -> tuple[int, tuple[Message, ...]]:
    """Return what may be seen of the stored conversation, and where that begins."""
    if not request.session_id:
        return 0, ()
    max_bytes = 0 if scope.services.memory.eviction is Eviction.NONE else MAX_RECALLED_BYTES
    return await scope.conversations.history(request.session_id, max_bytes)


async def _system_prompt(scope: RunScope, request: Request) -> str:
    prompt = request.prompt
    if prompt.is_assembled:
        return prompt.text
    reads_session = prompt.template is not None and bool(request.session_id)
    session = await scope.conversations.session_state(request.session_id) if reads_session else {}
    return await scope.services.prompts.system_prompt(request, session)


async def _plan_tools(scope: RunScope, request: Request, names: frozenset[str]) -> tuple[ToolDefinition, ...]:
    if request.tools and (denied := sorted(names - set(request.tools))):
        raise PermissionDenied(
            f"the plan uses tool {denied[0]!r}, which is not among the request's tools", code=ErrorCode.TOOL_DENIED
        )
    listed = await scope.services.tools.list_tools(sorted(names)) if names else []
    return tuple(tool.definition for tool in listed)


async def _offered_tools(
    scope: RunScope, request: Request
) -> tuple[tuple[ToolDefinition, ...], tuple[ResponseWarning, ...]]:
    """Return the tools, and a warning where nobody named any and they cannot be had for now."""
    choice = request.hints.tool_choice
    try:
        listed = await scope.services.tools.list_tools(request.tools)
    except PaganticError as error:
        if request.tools or choice.is_enforced or not is_outage(error):
            raise
        return (), (ResponseWarning("tools_unavailable", f"no tools were offered to the model: {error}"),)
    tools = tuple(tool.definition for tool in listed if tool.is_available)
    if choice.is_enforced and not tools:
        raise InvalidRequest("tool_choice demands a call, but no tool is available", code=ErrorCode.CONFIG_INVALID)
    if choice.tool_name and choice.tool_name not in {tool.name for tool in tools}:
        raise InvalidRequest(
            f"tool_choice names {choice.tool_name!r}, which is not an available tool of this request: use "
            "auto, required, none, or a tool's name",
            code=ErrorCode.TOOL_NOT_FOUND,
        )
    return tools, ()


async def _retrieve(
    scope: RunScope, request: Request, history: tuple[Message, ...]
) -> tuple[Message | None, float | None, tuple[ResponseWarning, ...]]:
    """Return the context message, its confidence, and a warning when the context could not be had for now.

    A collection, retriever or scorer that does not exist fails the request, and so does an outage where the
    context is required.
    """
    policy, query = request.context, last_user_text(request, history)
    if policy is None:
        return None, None, ()
    started_s = scope.clock.monotonic_s()
    built = BuiltContext(None)
    failed: PaganticError | None = None
    try:
        built = await scope.services.context.build(query, policy, request.hints.model)
    except PaganticError as error:
        failed = error
    failure = None if failed is None else failure_from(failed)
    await scope.recorder.emit(
        events.ContextRetrieved(policy.collection, len(built.chunks), built.token_count),
        duration_s=scope.clock.monotonic_s() - started_s,
        failure=failure,
        caused_by=scope.cause,
    )
    if failed is None or failure is None:
        return built.message, retrieval_confidence(query, built.chunks), ()
    if policy.is_required or not is_outage(failed):
        raise failed
    text = f"answered without the context of collection {policy.collection!r}: {failure.message}"
    return None, None, (ResponseWarning("context_unavailable", text),)


def _schema_warnings(request: Request) -> tuple[ResponseWarning, ...]:
    if not request.output.schema_json or not is_schema_left_out(request.output):
        return ()
    text = (
        f"the schema is larger than {MAX_AUTO_SCHEMA_BYTES} bytes and was left out of the prompt: set "
        "output.schema_in_prompt to ON to include it"
    )
    return (ResponseWarning("schema_not_in_prompt", text),)


def _decoder_warnings(compiled: CompiledConstraint) -> tuple[ResponseWarning, ...]:
    """Return a warning that names the keywords of the schema that the decoder leaves to the check afterwards."""
    if not compiled.unsupported:
        return ()
    named, more = compiled.unsupported[:MAX_NAMED_KEYWORDS], len(compiled.unsupported) - MAX_NAMED_KEYWORDS
    names = "; ".join(named) + (f"; and {more} more" if more > 0 else "")
    text = f"the decoder does not enforce these parts of the schema, which are checked after decoding: {names}"
    return (ResponseWarning("schema_not_enforced", text),)
