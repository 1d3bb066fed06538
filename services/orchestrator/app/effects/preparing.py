"""The PREPARE state, which resolves the inputs of a run before its first inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pagantic_common.domain.messages import Message
from services.orchestrator.app.effects.remembering import MAX_RECALLED_BYTES, MAX_RECALLED_MESSAGES, Memory
from services.orchestrator.app.effects.retrieval.retrieving import retrieve
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.effects.tools.offering import offered_tools, plan_tools
from services.orchestrator.app.services import Compile, CompileRules
from services.orchestrator.core.conversation.memory import Eviction
from services.orchestrator.core.conversation.prompt import (
    MAX_AUTO_SCHEMA_BYTES,
    context_message,
    is_schema_left_out,
)
from services.orchestrator.core.model.plan import tools_of
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.request_check import check_configuration, check_results
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.turn.preparing import Prepare
from services.orchestrator.core.turn.run import Run
from services.orchestrator.ports.services import CompiledConstraint

MAX_NAMED_KEYWORDS = 8  # maximum number of keywords that a warning names


async def prepare(run: Run, _command: Prepare, scope: RunScope) -> Prepared:
    """Resolve the system prompt, history, constraint, tools and context. Raises PaganticError if this fails."""
    request = run.request
    check_configuration(request)
    if request.rules:
        await scope.services.do(CompileRules(request))
    if scope.taken is not None and (recorded := scope.taken.prepared) is not None:
        if not scope.taken.has_other_prompt:
            return recorded
        return replace(recorded, system_prompt=await _system_prompt(request, scope))
    prepared = Prepared(system_prompt=await _system_prompt(request, scope))
    first, history = await _history(request, scope)
    if request.is_turn:
        check_results(history, request.messages)
    if run.plan is not None:  # only a run in mode PLAN has a plan
        prepared = replace(prepared, tools=await plan_tools(request, tools_of(run.plan), scope))
    else:
        prepared = await _prepare_turn(run, prepared, history, scope)
    return await Memory(run, scope).recall(prepared, history, first)


async def _prepare_turn(run: Run, prepared: Prepared, history: tuple[Message, ...], scope: RunScope) -> Prepared:
    request = run.request
    tools, away = await offered_tools(request, history, scope)
    retrieved = await retrieve(run, history, scope)
    if request.output.citations is not None:
        prepared = replace(prepared, cited_chunks=retrieved.chunks)
    compiled = await _compiled(request, prepared.cited_sources, scope)
    return replace(
        prepared,
        context_message=context_message(request, retrieved.message, tools),
        retrieval_confidence=retrieved.confidence,
        tools=tools,
        engine_text=compiled.engine_text,
        is_fully_enforced=compiled.is_fully_enforced,
        usage=prepared.usage + scope.inference.take_lost(),
        warnings=(*_schema_warnings(request), *_decoder_warnings(compiled), *away, *retrieved.warnings),
    )


async def _compiled(request: Request, sources: Sequence[str], scope: RunScope) -> CompiledConstraint:
    if not request.output.decoder_constraint or request.output.is_empty:
        return CompiledConstraint("", is_fully_enforced=False)
    return await scope.services.do(Compile(request.output, sources))


async def _history(request: Request, scope: RunScope) -> tuple[int, tuple[Message, ...]]:
    """Return the visible part of the stored conversation, and the position where that part starts."""
    if not request.session_id:
        return 0, ()
    if scope.services.memory.eviction is Eviction.NONE:
        return await scope.conversations.history(request.session_key)
    return await scope.conversations.history(request.session_key, MAX_RECALLED_BYTES, limit=MAX_RECALLED_MESSAGES)


async def _system_prompt(request: Request, scope: RunScope) -> str:
    prompt = request.prompt
    if prompt.is_assembled:
        return prompt.text
    if request.text_prompt:
        return ""
    session: Mapping[str, str] = {}
    if prompt.template is not None and request.session_id:
        session = await scope.conversations.session_state(request.session_key)
    return await scope.services.prompts.system_prompt(request, session)


def _schema_warnings(request: Request) -> tuple[ResponseWarning, ...]:
    if request.text_prompt or not request.output.schema_json or not is_schema_left_out(request.output):
        return ()
    text = (
        f"the schema is larger than {MAX_AUTO_SCHEMA_BYTES} bytes and was left out of the prompt: set "
        "output.schema_in_prompt to ON to include it"
    )
    return (ResponseWarning("schema_not_in_prompt", text),)


def _decoder_warnings(compiled: CompiledConstraint) -> tuple[ResponseWarning, ...]:
    """Return a warning that names the schema keywords that are checked only after decoding."""
    if not compiled.unsupported:
        return ()
    named, more = compiled.unsupported[:MAX_NAMED_KEYWORDS], len(compiled.unsupported) - MAX_NAMED_KEYWORDS
    names = "; ".join(named) + (f"; and {more} more" if more > 0 else "")
    text = f"the decoder does not enforce these parts of the schema, which are checked after decoding: {names}"
    return (ResponseWarning("schema_not_enforced", text),)
