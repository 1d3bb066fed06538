"""PREPARE: finds out what a run works with before its first inference."""

from __future__ import annotations

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import (
    ErrorCode,
    InvalidRequest,
    PaganticError,
    PermissionDenied,
)
from pagantic_common.domain.messages import Message, ToolDefinition
from services.orchestrator.app.failures import failure_from, is_outage
from services.orchestrator.app.inferences import Inferences
from services.orchestrator.app.memory import MAX_RECALLED_BYTES, Memory
from services.orchestrator.app.recorder import Recorder
from services.orchestrator.app.services import Services
from services.orchestrator.core import events
from services.orchestrator.core.memory import Eviction
from services.orchestrator.core.plan import Plan, tools_of
from services.orchestrator.core.prompt import (
    MAX_AUTO_SCHEMA_BYTES,
    context_message,
    is_schema_left_out,
    last_user_text,
)
from services.orchestrator.core.request import Request, check_configuration
from services.orchestrator.core.response_warning import ResponseWarning
from services.orchestrator.core.retrieval import retrieval_confidence
from services.orchestrator.core.run import Prepared
from services.orchestrator.ports.journal import Journal
from services.orchestrator.ports.services import BuiltContext, CompiledConstraint

MAX_NAMED_KEYWORDS = 8  # in a warning


class Preparation:
    """Prepares one run, or one step of a plan."""

    def __init__(
        self, services: Services, journal: Journal, clock: Clock, recorder: Recorder, inferences: Inferences
    ) -> None:
        self._services = services
        self._journal = journal
        self._clock = clock
        self._recorder = recorder
        self._inferences = inferences
        self._memory = Memory(services, inferences)

    async def prepare(self, request: Request, plan: Plan | None) -> Prepared:
        """Resolve the system prompt, history, constraint, tools and context; what cannot be raises PaganticError."""
        check_configuration(request)
        if request.rules:
            await self._services.constraint.compile_rules(request)
        system_prompt = await self._system_prompt(request)
        first, history = await self._history(request)
        if plan is not None:  # only a run in mode PLAN has one
            tools = await self._plan_tools(request, tools_of(plan))
            return await self._memory.recall(
                request, Prepared(system_prompt=system_prompt, tools=tools), history, first
            )
        compiled = CompiledConstraint("", is_fully_enforced=False)
        if request.output.decoder_constraint and not request.output.is_empty:
            compiled = await self._services.constraint.compile(request.output)
        tools, away = await self._offered_tools(request) if request.offers_tools else ((), ())
        retrieved, confidence, lost = await self._retrieve(request, history)
        prepared = Prepared(
            system_prompt=system_prompt,
            context_message=context_message(request, retrieved, tools),
            retrieval_confidence=confidence,
            tools=tools,
            engine_text=compiled.engine_text,
            is_fully_enforced=compiled.is_fully_enforced,
            warnings=(*_schema_warnings(request), *_decoder_warnings(compiled), *away, *lost),
        )
        return await self._memory.recall(request, prepared, history, first)

    async def _history(self, request: Request) -> tuple[int, tuple[Message, ...]]:
        """Return what may be seen of the stored conversation, and where that begins."""
        if not request.session_id:
            return 0, ()
        max_bytes = 0 if self._services.memory.eviction is Eviction.NONE else MAX_RECALLED_BYTES
        return await self._journal.history(request.session_id, max_bytes)

    async def _system_prompt(self, request: Request) -> str:
        prompt = request.prompt
        if prompt.is_assembled:
            return prompt.text
        reads_session = prompt.template is not None and bool(request.session_id)
        session = await self._journal.session_state(request.session_id) if reads_session else {}
        return await self._services.prompts.system_prompt(request, session)

    async def _plan_tools(self, request: Request, names: frozenset[str]) -> tuple[ToolDefinition, ...]:
        if request.tools and (denied := sorted(names - set(request.tools))):
            raise PermissionDenied(
                f"the plan uses tool {denied[0]!r}, which is not among the request's tools", code=ErrorCode.TOOL_DENIED
            )
        listed = await self._services.tools.list_tools(sorted(names)) if names else []
        return tuple(tool.definition for tool in listed)

    async def _offered_tools(self, request: Request) -> tuple[tuple[ToolDefinition, ...], tuple[ResponseWarning, ...]]:
        """Return the tools, and a warning where nobody named any and they cannot be had for now."""
        choice = request.hints.tool_choice
        try:
            listed = await self._services.tools.list_tools(request.tools)
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
        self, request: Request, history: tuple[Message, ...]
    ) -> tuple[Message | None, float | None, tuple[ResponseWarning, ...]]:
        """Return the context message, its confidence, and a warning when the context could not be had for now.

        A collection, retriever or scorer that does not exist fails the request, and so does an outage where the
        context is required.
        """
        policy, query = request.context, last_user_text(request, history)
        if policy is None:
            return None, None, ()
        started_s = self._clock.monotonic_s()
        built = BuiltContext(None)
        failed: PaganticError | None = None
        try:
            built = await self._services.context.build(query, policy, request.hints.model)
        except PaganticError as error:
            failed = error
        failure = None if failed is None else failure_from(failed)
        await self._recorder.emit(
            events.ContextRetrieved(policy.collection, len(built.chunks), built.token_count),
            duration_s=self._clock.monotonic_s() - started_s,
            failure=failure,
            caused_by=self._inferences.cause,
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
