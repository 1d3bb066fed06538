"""The cost of inferences, in tokens and seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token counts and decode time of one or more inferences."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    reasoning_tokens: int = 0
    output_tokens: int = 0
    context_tokens: int = 0
    context_window: int = 0
    decode_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second of decoding, or 0 if nothing was decoded."""
        if self.decode_seconds <= 0:
            return 0.0
        return self.output_tokens / self.decode_seconds

    def __add__(self, other: TokenUsage) -> TokenUsage:
        """Return the sum of the counts and seconds. The context is the larger of the two contexts."""
        return TokenUsage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens + other.cached_prompt_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            context_tokens=max(self.context_tokens, other.context_tokens),
            context_window=max(self.context_window, other.context_window),
            decode_seconds=self.decode_seconds + other.decode_seconds,
        )
