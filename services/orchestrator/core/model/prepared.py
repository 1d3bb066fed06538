"""The result of PREPARE, from which the first inference is built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.messages import Message, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.kernel.command import Answer
from services.orchestrator.core.model.response_warning import ResponseWarning


@dataclass(frozen=True, slots=True)
class Prepared(Answer):
    """The parts of the first inference, resolved by PREPARE.

    Attributes:
        system_prompt: The system prompt, which may be empty.
        history: The messages before those of the request: a summary, if there is a summary, and then the stored
            conversation from position `history_start` to before `history_end`.
        context_message: The retrieved context, or None if there is no context.
        retrieval_confidence: A score from 0 to 1 for how well the context covers the question, or the probability that
            it contains the answer.
        tools: The tools that the model may call.
        engine_text: The decoder's constraint, or an empty string if there is no constraint.
        is_fully_enforced: Whether the decoder enforces the whole schema.
        usage: The tokens used by PREPARE.
        cited_chunks: The chunks of the context in the order of their numbers, kept only for an answer with citations.
        warnings: Warnings about parts that could not be resolved, although the request did not fail.
    """

    kind: ClassVar[str] = "Prepared"

    system_prompt: str = ""
    history: tuple[Message, ...] = ()
    history_start: int = 0
    history_end: int = 0
    context_message: Message | None = None
    retrieval_confidence: float | None = None
    tools: tuple[ToolDefinition, ...] = ()
    engine_text: str = ""
    is_fully_enforced: bool = False
    usage: TokenUsage = TokenUsage()
    warnings: tuple[ResponseWarning, ...] = ()
    cited_chunks: tuple[Chunk, ...] = ()

    @property
    def cited_sources(self) -> tuple[str, ...]:
        """The texts that an answer may quote."""
        return tuple(chunk.content for chunk in self.cited_chunks)

    def as_recorded(self) -> Self:
        """Return the answer without usage and with its whole history, so its positions in a conversation are reset."""
        return replace(self, usage=TokenUsage(), history_start=0, history_end=0)
