"""The time per prompt token of replicas, learned from the times to their first tokens.

The fixed part of a first token's time, apart from its prompt, is nearly the same at all replicas. It is subtracted:
otherwise the calls of a replica with mostly cached prompts would make that replica seem slow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_TOKEN_S = 0.002
# A replica's time is a mean over about so many of its last tokens.
_REMEMBERED_TOKENS = 16_384.0
# Weight in tokens of the mean of all replicas in a replica's own estimate. With smaller values, noise looks like a
# difference, since later arrivals also delay first tokens. A replica that is several times slower still stands out.
_SHARED_TOKENS = 16_384.0
# The least time is forgotten by so much with each call.
_LEAST_GROWTH = 1.01
_LEAST_TOKEN_S = 1e-6


@dataclass(slots=True)
class Speed:
    """The tokens that were computed lately, and the time that they took."""

    tokens: float = 0.0
    seconds: float = 0.0

    def learn(self, tokens: float, seconds: float) -> None:
        """Add the tokens and the time of a call."""
        kept = math.exp(-tokens / _REMEMBERED_TOKENS)
        self.tokens = self.tokens * kept + tokens
        self.seconds = self.seconds * kept + seconds

    def token_s(self, expected_s: float) -> float:
        """Return the time for a token, where others need the expected time."""
        return max(_LEAST_TOKEN_S, (self.seconds + _SHARED_TOKENS * expected_s) / (self.tokens + _SHARED_TOKENS))


class Speeds:
    """The speed of all replicas together, and the fixed time of a first token apart from its prompt."""

    def __init__(self) -> None:
        self._all = Speed(1.0, FIRST_TOKEN_S)
        self._least_s = math.inf

    @property
    def expected_s(self) -> float:
        """Time per token of a replica without measurements."""
        return self._all.seconds / self._all.tokens

    def learn(self, speed: Speed, tokens: float, seconds: float) -> None:
        """Note that a replica of this speed gave a first token, and how many prompt tokens were computed before it."""
        self._least_s = min(seconds, self._least_s * _LEAST_GROWTH)
        for each in (speed, self._all):
            each.learn(tokens, seconds - self._least_s)
