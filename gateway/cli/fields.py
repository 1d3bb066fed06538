"""The options of the command line by the fields of requests, which the messages of services name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_FIELD = re.compile(r"[a-z_]+(?:\.[a-z_]+)*")
OPTION_OF = {
    "session_id": "--session",
    "hints.max_tokens": "--max-tokens",
    "hints.timeout": "--timeout",
    "hints.temperature": "--temperature",
    "hints.seed": "--seed",
    "hints.model": "--model",
    "hints.stop": "--stop",
    "hints.tool_choice": "--tool-choice",
    "hints.reasoning": "--reasoning",
    "hints.reasoning.mode": "--reasoning",
    "output.schema_json": "--schema",
    "voting.n": "-n",
    "voting.strategy": "--strategy",
    "voting.min_agreement": "--min-agreement",
    "voting.early_stop": "--early-stop",
    "context.collection": "--context",
    "context.retriever": "--retriever",
    "context.max_chunks": "--chunks",
    "context.filter": "--filter",
    "context.query_expansion.queries": "--queries",
    "context.query_expansion.hypothetical_document": "--hyde",
    "context.answerability.min_probability": "--min-probability",
    "context.answerability.slope": "--slope",
    "context.answerability.intercept": "--intercept",
    "replay.from_step": "--fork",
    "replay.tools": "--live-tools",
}
_options: ContextVar[frozenset[str]] = ContextVar("options", default=frozenset())


@contextmanager
def offering(options: Iterable[str]) -> Iterator[None]:
    """Have messages inside the block explained by the options of the command that runs."""
    token = _options.set(frozenset(options))
    try:
        yield
    finally:
        _options.reset(token)


def option_step(message: str) -> str:
    """Return the next step for a message that begins with a field; empty where no option of the command sets it."""
    begin = _FIELD.match(message)
    if begin is None:
        return ""
    option = OPTION_OF.get(begin[0], "")
    if option not in _options.get():
        return ""
    return f"change {option}, which the message calls {begin[0]}"
