"""Retrieves the context of a run, with model-written queries, and estimates whether the chunks have the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagantic_common.domain.chunks import Chunk, lay_out
from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.messages import Message, ToolChoice
from services.orchestrator.app.effects.guarding.calls import check_chunks
from services.orchestrator.app.effects.inference.inferring import infer
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.failures import failure_from, is_excused, is_outage, optional_failure_from
from services.orchestrator.app.services import BuildContext, Compile, Score
from services.orchestrator.core.conversation.grounding import YES_OR_NO, answerability_messages, retrieval_confidence
from services.orchestrator.core.conversation.prompt import last_user_text
from services.orchestrator.core.conversation.query_writing import QueryPrompt, query_prompts
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.events import InferencePurpose
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.request import Hints, Request, side_hints
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.model.retrieval import Answerability, ContextPolicy, QueryExpansion
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.run import Run
from services.orchestrator.ports.services import BuiltContext


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The retrieved context of a run.

    It consists of the context message or None, the probability that the context has the answer, warnings about
    failures, and the chunks.
    """

    message: Message | None = None
    confidence: float | None = None
    warnings: tuple[ResponseWarning, ...] = ()
    chunks: tuple[Chunk, ...] = ()


async def retrieve(run: Run, history: tuple[Message, ...], scope: RunScope) -> Retrieved:
    """Return the context that a request's policy requires, or a warning if it is temporarily unavailable.

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
    """Return the context after the guards' changes. Changed chunks are laid out again."""
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


@dataclass(frozen=True, slots=True)
class WrittenQueries:
    """The written queries, and warnings if some are missing."""

    texts: tuple[str, ...] = ()
    warnings: tuple[ResponseWarning, ...] = ()


async def write_queries(run: Run, question: str, expansion: QueryExpansion, scope: RunScope) -> WrittenQueries:
    """Return the queries that an expansion requires.

    If the model is unavailable, or the question is too long for the model, return the queries so far with a warning.
    """
    texts: list[str] = []
    for prompt in query_prompts(question, expansion):
        try:
            texts += await _write(run, prompt, expansion.model, scope)
        except PaganticError as error:
            if not is_excused(error):
                raise
            scope.inference.give_up()
            return WrittenQueries(tuple(texts), (_warning(len(texts), error),))
    return WrittenQueries(tuple(texts))


async def _write(run: Run, prompt: QueryPrompt, model: str, scope: RunScope) -> tuple[str, ...]:
    contract, engine_text = OutputContract(schema_json=prompt.schema_json), ""
    if prompt.schema_json:
        engine_text = (await scope.services.do(Compile(contract))).engine_text
    hints = replace(side_hints(run.request.hints), max_tokens=prompt.max_tokens, temperature=0.0)
    query_request = replace(run.request, output=contract, hints=replace(hints, model=model or hints.model))
    command = Infer(
        messages=prompt.messages,
        tools=(),
        tool_choice=ToolChoice(),
        engine_text=engine_text,
        seed=run.request.hints.seed,
        is_streamed=False,
    )
    output = (await infer(replace(run, request=query_request), command, scope, InferencePurpose.QUERY)).output
    scope.inference.lost += output.usage  # This usage is added to PREPARE's answer or failure.
    return prompt.read(output.content)


def _warning(count: int, error: PaganticError) -> ResponseWarning:
    queries = "the question alone"
    if count:
        queries = f"the question and {count} of the model's queries"
    return ResponseWarning("query_expansion_unavailable", f"searched {queries}: {failure_from(error).message}")


@dataclass(frozen=True, slots=True)
class Weighed:
    """The probability that the chunks contain the answer, or None if the model was unavailable, and warnings."""

    probability: float | None
    warnings: tuple[ResponseWarning, ...] = ()


async def weigh_answerability(
    question: str, chunks: Sequence[Chunk], policy: Answerability, hints: Hints, scope: RunScope
) -> Weighed:
    """Return the probability that the chunks have the answer; 0 without chunks. An outage only adds a warning."""
    if not chunks:
        await scope.recorder.emit(events.ContextWeighed(policy.min_probability, 0.0), caused_by=scope.cause)
        return Weighed(0.0)
    started_s = scope.clock.monotonic_s()
    weighed = events.ContextWeighed(policy.min_probability)
    failed: PaganticError | None = None
    try:
        weighed = await _ask(question, chunks, policy, hints, scope)
    except PaganticError as error:
        failed = error
    await scope.recorder.emit(
        weighed,
        duration_s=scope.clock.monotonic_s() - started_s,
        failure=optional_failure_from(failed),
        caused_by=scope.cause,
    )
    if failed is None:
        return Weighed(weighed.probability)
    if not is_excused(failed):
        raise failed
    text = f"the probability that the context has the answer is not known: {failure_from(failed).message}"
    return Weighed(None, (ResponseWarning("answerability_unavailable", text),))


async def _ask(
    question: str, chunks: Sequence[Chunk], policy: Answerability, hints: Hints, scope: RunScope
) -> events.ContextWeighed:
    command = Infer(
        messages=answerability_messages(question, chunks),
        tools=(),
        tool_choice=ToolChoice(),
        engine_text="",
        seed=hints.seed,
        is_streamed=False,
        max_tokens=1,  # Scoring decodes nothing, so the budget need not reserve more.
    )
    scoring_hints = replace(side_hints(hints), model=policy.model or hints.model)
    scores = await scope.services.do(Score(scoring_hints, command, YES_OR_NO))
    scope.inference.lost += scores.usage  # This usage is added to PREPARE's answer or failure.
    probability = policy.calibration.probability_of(scores.log_odds)
    return events.ContextWeighed(policy.min_probability, probability, scores.log_odds, scores.usage.prompt_tokens)
