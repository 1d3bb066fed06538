"""Shows responses and executions in a notebook: answer, citations, votes, tools, steps, errors and cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Final

from pagantic.common.v1 import error_pb2
from pagantic.orchestrator.v1 import decision_pb2, execution_pb2
from pagantic_common.client.descriptions import (
    count_of,
    describe_citation,
    describe_outcome,
    describe_step,
    describe_tool_call,
    describe_votes,
    error_code_name,
    mode_name,
    state_name,
    vote_counts,
)
from pagantic_common.client.notebook.markup import (
    MAX_CELL_CHARS,
    MAX_TEXT_CHARS,
    bar,
    block,
    bounded,
    cut_line,
    folded,
    inline,
    page,
    plain,
    table,
)
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

MAX_ITEMS: Final = 100
_HEAD: Final = '<div class="head">{}</div>'
_VOTE_COLOUR: Final = "#3b82d4"


def response_bundle(response: execution_pb2.SystemResponse, **_: object) -> dict[str, str]:
    """Return a response as text and as HTML."""
    return {"text/plain": "\n".join(_text_lines(response)), "text/html": page(_parts(response))}


def execution_bundle(execution: execution_pb2.Execution, **_: object) -> dict[str, str]:
    """Return an execution as text and as HTML."""
    head = f"execution {bounded(execution.request_id, MAX_CELL_CHARS)}: {mode_name(execution.mode)}, "
    head += state_name(execution.state.current)
    if execution.interrupted:
        head += " (interrupted)"
    lines, parts = [head], [_HEAD.format(escape(head))]
    if execution.HasField("response"):
        lines += _text_lines(execution.response)
        parts += _parts(execution.response)
    return {"text/plain": "\n".join(lines), "text/html": page(parts)}


def decision_bundle(decision: decision_pb2.Decision, **_: object) -> dict[str, str]:
    """Return a decision as text and as HTML."""
    name = bounded(decision.name, MAX_CELL_CHARS)
    text = f"{name}: {_answer_of(decision)}, confidence {decision.confidence:.2f}"
    return {"text/plain": text, "text/html": page([_HEAD.format("decision"), table([_decision_row(decision)])])}


def _text_lines(response: execution_pb2.SystemResponse) -> Iterator[str]:
    if response.HasField("error"):
        yield f"{error_code_name(response.error.code)}: {bounded(response.error.message)}"
    if answer := response.content or response.structured_output_json:
        yield bounded(answer)
    if response.candidates:
        yield bounded(describe_votes(response), MAX_CELL_CHARS)
    for citation in response.citations[:MAX_ITEMS]:
        yield bounded(describe_citation(citation), MAX_CELL_CHARS)
    yield bounded(describe_outcome(response), MAX_CELL_CHARS)


def _parts(response: execution_pb2.SystemResponse) -> Iterator[str]:
    yield _HEAD.format(_kind_of(response))
    if response.HasField("error"):
        yield _error_html(response.error)
    if response.reasoning:
        yield folded("reasoning", block(response.reasoning))
    yield from _answer_parts(response)
    if response.candidates:
        yield _votes_html(response)
    if response.decisions:
        yield table(map(_decision_row, response.decisions[:MAX_ITEMS]))
    yield from _work_parts(response)
    for warning in response.warnings[:MAX_ITEMS]:
        yield f'<div class="less">⚠ {inline(warning.message)}</div>'
    yield f'<div class="less">{inline(describe_outcome(response))}</div>'


def _kind_of(response: execution_pb2.SystemResponse) -> str:
    """Return the kind of a response, inferred from its fields because a response does not hold the request's mode."""
    kinds = (
        ("failed", response.HasField("error")),
        ("vote", bool(response.candidates)),
        ("plan", bool(response.step_results)),
        ("decisions", bool(response.decisions)),
        ("answer with citations", bool(response.citations)),
        ("structured answer", bool(response.structured_output_json)),
    )
    return next((name for name, holds in kinds if holds), "answer")


def _error_html(error: error_pb2.SystemError) -> str:
    retry = " (the same request may succeed later)" if error.retryable else ""
    return f'<div class="error"><strong>{error_code_name(error.code)}</strong> {inline(error.message)}{retry}</div>'


def _answer_parts(response: execution_pb2.SystemResponse) -> Iterator[str]:
    document = ""
    if response.structured_output_json:
        document = block(_indented(response.structured_output_json), "code")
    if response.citations:
        yield _marked_answer(response)
        yield from map(_citation_html, response.citations[:MAX_ITEMS])
        if document:
            yield folded("as JSON", document)
        return
    if document:
        yield document
    elif response.content:
        yield block(response.content)


def _indented(document: str) -> str:
    """Return a document indented as JSON, or unchanged if it is too long or is not rewritable JSON."""
    if len(document) > MAX_TEXT_CHARS:
        return document
    try:
        return json.dumps(parse_json(document, is_rewritable=True), ensure_ascii=False, indent=2)
    except JsonTextError:
        return document


def _marked_answer(response: execution_pb2.SystemResponse) -> str:
    """Return the HTML of an answer with its claims marked. Hovering over a claim shows its quote."""
    answer, at = response.content[:MAX_TEXT_CHARS], 0
    pieces: list[str] = []
    for citation in response.citations:
        start = answer.find(citation.claim, at)
        if not citation.claim or start < 0:
            continue
        pieces.append(escape(plain(answer[at:start])))
        quote = escape(bounded(citation.quote, MAX_CELL_CHARS))
        pieces.append(f'<mark title="{quote}">{escape(plain(citation.claim))}</mark>')
        at = start + len(citation.claim)
    pieces.append(escape(plain(answer[at:])))
    return f'<pre dir="auto">{"".join(pieces)}</pre>{cut_line(response.content)}'


def _citation_html(citation: execution_pb2.Citation) -> str:
    page_text = f", page {citation.page}" if citation.page else ""
    place = f"{page_text}, characters {citation.start} to {citation.end}"
    return (
        f'<div class="less">[{citation.source}] {inline(citation.document)}{place}</div>'
        f"<blockquote>{inline(citation.quote)}</blockquote>"
    )


def _votes_html(response: execution_pb2.SystemResponse) -> str:
    counts = vote_counts(response)
    total = sum(count for _, count in counts)
    chosen = response.structured_output_json or response.content
    rows: list[str] = []
    for value, count in counts[:MAX_ITEMS]:
        shown = inline(value)
        if value == chosen:
            shown = f"<strong>✓ {shown}</strong>"
        drawn = bar(count / total, _VOTE_COLOUR)
        rows.append(f'<tr><td>{shown}</td><td>{drawn}</td><td class="number">{count} of {total}</td></tr>')
    confidence = ""
    if response.HasField("confidence"):
        confidence = f"<div>confidence {response.confidence:.2f}</div>"
    return table(rows) + confidence


def _decision_row(decision: decision_pb2.Decision) -> str:
    drawn = bar(decision.confidence, _VOTE_COLOUR)
    return (
        f"<tr><td>{inline(decision.name)}</td><td>{_answer_of(decision)}</td><td>{drawn}</td>"
        f'<td class="number">confidence {decision.confidence:.2f}</td></tr>'
    )


def _answer_of(decision: decision_pb2.Decision) -> str:
    if decision.abstention:
        return "abstains"
    if decision.HasField("predicate"):
        return f"true with probability {decision.predicate.probability:.2f}"
    if decision.HasField("choice"):
        return f"option {decision.choice.index}"
    return f"score {decision.score.score:.2f}"


def _work_parts(response: execution_pb2.SystemResponse) -> Iterator[str]:
    """Yield the HTML of the work behind the answer: the tool calls and the steps of a plan."""
    if response.tool_calls_made:
        calls = [block(describe_tool_call(call), "code") for call in response.tool_calls_made[:MAX_ITEMS]]
        yield folded(count_of(len(response.tool_calls_made), "tool call"), "".join(calls))
    if response.step_results:
        steps = [f"<div>{inline(describe_step(step))}</div>" for step in response.step_results[:MAX_ITEMS]]
        yield folded(count_of(len(response.step_results), "step"), "".join(steps))
