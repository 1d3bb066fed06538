"""What PREPARE resolves before the first inference."""

from __future__ import annotations

from dataclasses import dataclass

from pagantic_common.domain.messages import Message, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.model.response_warning import ResponseWarning


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the first inference needs.

    Attributes:
        system_prompt: Empty for none.
        history: Messages before those of the request. The last of them are the stored conversation's from position
            `history_start` to before `history_end`; a summary of older ones may come first.
        context_message: What was retrieved; None for nothing.
        retrieval_confidence: How well it covers the question, 0 to 1.
        tools: What the model may call.
        engine_text: The decoder's constraint; empty for none.
        is_fully_enforced: Whether the decoder enforces the whole schema.
        usage: Tokens that preparing cost.
        warnings: What could not be resolved, and did not fail the request.
    """

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
