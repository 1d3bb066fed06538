"""An inference service whose engine takes the time of a step and computes nothing.

`python -m tests.bench.routing.paced_service` serves as `services.inference` does: tokenizer, template, scheduler and
cache are real. Only the multiplications are replaced by a pause, so that several replicas on one machine do not slow
each other down. PACED_STEP_S and PACED_TOKEN_S are the costs of a step and of each token in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from services.inference.adapters.llama import engine as llama_engine
from services.inference.core.decoding.sampling import Logits
from services.inference.core.scheduling.batch import Slice


class PacedEngine(llama_engine.LlamaCppEngine):
    """Says the same word again and again, at its pace; it stores no cells."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._step_s = float(os.environ.get("PACED_STEP_S", "0.01"))
        self._token_s = float(os.environ.get("PACED_TOKEN_S", "0.001"))
        self._word = self.tokenize(" light", add_special=False, parse_special=False)[-1]

    def decode(self, slices: Sequence[Slice]) -> Logits:
        """Pause, and prefer the word."""
        time.sleep(self._step_s + self._token_s * sum(len(part.tokens) for part in slices))
        logits = np.zeros((sum(part.logit_rows for part in slices), self.vocabulary.size), np.float32)
        logits[:, self._word] = 1.0
        return logits

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Do nothing."""

    def park(self, sequence_id: int, start: int, end: int, key: int) -> None:
        """Do nothing."""

    def unpark(self, key: int, sequence_id: int, length: int) -> None:
        """Do nothing."""

    def drop(self, key: int) -> None:
        """Do nothing."""

    def truncate(self, sequence_id: int, length: int) -> None:
        """Do nothing."""


def main() -> None:
    """Serve."""
    llama_engine.LlamaCppEngine = PacedEngine  # type: ignore[misc] # the wiring takes the class from there
    from services.inference.__main__ import main as serve  # noqa: PLC0415

    serve()


if __name__ == "__main__":
    main()
