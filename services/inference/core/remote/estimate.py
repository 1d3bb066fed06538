"""Estimates the tokens of a prompt whose tokenizer is elsewhere. Most texts have fewer tokens than the estimate."""

from __future__ import annotations

from pagantic_common.domain.images import ESTIMATED_TOKENS
from pagantic_common.domain.messages import count_images
from services.inference.core.generation import Prompt, TokenPrompt

BYTES_PER_TOKEN = 3  # English has four to five bytes for a token, code and most other scripts about three
# A template puts about so many tokens around each message and around each tool.
MESSAGE_TOKENS = 8
TOOL_TOKENS = 16


def estimate_text(text: str) -> int:
    """Return the estimated tokens of a text; 0 for an empty one."""
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


def estimate_prompt(prompt: Prompt) -> int:
    """Return the estimated tokens of a prompt with its template and tools."""
    if isinstance(prompt, TokenPrompt):
        return len(prompt.tokens)
    if isinstance(prompt, str):
        return estimate_text(prompt)
    around = MESSAGE_TOKENS * (len(prompt.messages) + 1) + TOOL_TOKENS * len(prompt.tools)
    seen = ESTIMATED_TOKENS * count_images(prompt.messages)
    return around + seen + sum(estimate_text(text) for text in prompt.texts())
