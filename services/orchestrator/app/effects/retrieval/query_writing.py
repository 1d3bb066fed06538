"""Has the model write additional queries for a retrieval."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.messages import ToolChoice
from services.orchestrator.app.effects.inference.inferring import infer
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.failures import failure_from, is_excused
from services.orchestrator.app.services import Compile
from services.orchestrator.core.conversation.query_writing import QueryPrompt, query_prompts
from services.orchestrator.core.execution.events import InferencePurpose
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.request import side_hints
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.model.retrieval import QueryExpansion
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.run import Run


@dataclass(frozen=True, slots=True)
class WrittenQueries:
    """The written queries, and warnings if some are missing."""

    texts: tuple[str, ...] = ()
    warnings: tuple[ResponseWarning, ...] = ()


async def write_queries(run: Run, question: str, expansion: QueryExpansion, scope: RunScope) -> WrittenQueries:
    """Return the queries that an expansion asks for.

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
    scope.inference.lost += output.usage  # added to PREPARE's answer or failure
    return prompt.read(output.content)


def _warning(count: int, error: PaganticError) -> ResponseWarning:
    queries = "the question alone"
    if count:
        queries = f"the question and {count} of the model's queries"
    return ResponseWarning("query_expansion_unavailable", f"searched {queries}: {failure_from(error).message}")
