"""Retrieves the context of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagantic_common.domain.chunks import Chunk, lay_out
from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.messages import Message
from services.orchestrator.app.effects.guarding.calls import check_chunks
from services.orchestrator.app.effects.retrieval.answerability import weigh_answerability
from services.orchestrator.app.effects.retrieval.query_writing import WrittenQueries, write_queries
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.failures import failure_from, is_outage, optional_failure_from
from services.orchestrator.app.services import BuildContext
from services.orchestrator.core.conversation.prompt import last_user_text
from services.orchestrator.core.conversation.retrieval import retrieval_confidence
from services.orchestrator.core.execution import events
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.model.retrieval import ContextPolicy
from services.orchestrator.core.turn.run import Run
from services.orchestrator.ports.services import BuiltContext


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The retrieved context of a run.

    It contains the context message or None, the probability that the context has the answer, warnings about failures,
    and the chunks.
    """

    message: Message | None = None
    confidence: float | None = None
    warnings: tuple[ResponseWarning, ...] = ()
    chunks: tuple[Chunk, ...] = ()


async def retrieve(run: Run, history: tuple[Message, ...], scope: RunScope) -> Retrieved:
    """Return the context that a request's policy asks for, or a warning if it is temporarily unavailable.

    The request fails if a collection, retriever or scorer does not exist. It also fails if required or cited context
    is unavailable, because an answer from unsearched sources would claim that the sources lack the answer.
    """
    policy, query = run.request.context, last_user_text(run.request, history)
    if policy is None:
        return Retrieved()
    written = WrittenQueries()
    if policy.query_expansion is not None:
        written = await write_queries(run, query, policy.query_expansion, scope)
    built, warning = await _build(run.request, policy, query, written.texts, scope)
    if warning is not None:
        return Retrieved(warnings=(*written.warnings, warning))
    built, guarded = await _guarded(built, policy, run.request, scope)
    confidence = retrieval_confidence(query, built.chunks)
    warnings = (*written.warnings, *_warnings_of(policy, built), *guarded)
    if policy.answerability is not None:
        weighed = await weigh_answerability(query, built.chunks, policy.answerability, run.request.hints, scope)
        confidence = weighed.probability
        warnings += weighed.warnings
    return Retrieved(built.message, confidence, warnings, built.chunks)


async def _guarded(
    built: BuiltContext, policy: ContextPolicy, request: Request, scope: RunScope
) -> tuple[BuiltContext, tuple[ResponseWarning, ...]]:
    """Return the context as changed by the guards. Changed chunks are laid out again."""
    chunks, warnings = await check_chunks(built.chunks, request, scope)
    if chunks == built.chunks:
        return built, warnings
    message = None
    if chunks and built.message is not None:
        message = replace(built.message, content=lay_out(chunks, is_fenced=not policy.is_system))
    return replace(built, message=message, chunks=chunks), warnings


def _warnings_of(policy: ContextPolicy, built: BuiltContext) -> tuple[ResponseWarning, ...]:
    if not built.unembedded_count:
        return ()
    text = (
        f"{built.unembedded_count} chunks of collection {policy.collection!r} are not embedded yet: the search by "
        "vectors could not find them"
    )
    return (ResponseWarning("context_incomplete", text),)


async def _build(
    request: Request, policy: ContextPolicy, query: str, more_queries: tuple[str, ...], scope: RunScope
) -> tuple[BuiltContext, ResponseWarning | None]:
    """Return the context of a query and its expansions, or a warning. Emits an event in both cases."""
    started_s = scope.clock.monotonic_s()
    built = BuiltContext(None)
    failed: PaganticError | None = None
    try:
        built = await scope.services.do(BuildContext(query, policy, request.hints.model, more_queries))
    except PaganticError as error:
        failed = error
    await scope.recorder.emit(
        events.ContextRetrieved(policy.collection, len(built.chunks), built.token_count, len(more_queries)),
        duration_s=scope.clock.monotonic_s() - started_s,
        failure=optional_failure_from(failed),
        caused_by=scope.cause,
    )
    if failed is None:
        return built, None
    is_required = policy.is_required or request.output.citations is not None
    if is_required or not is_outage(failed):
        raise failed
    text = f"answered without the context of collection {policy.collection!r}: {failure_from(failed).message}"
    return built, ResponseWarning("context_unavailable", text)
