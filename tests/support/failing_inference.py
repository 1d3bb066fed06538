"""`python -m tests.support.failing_inference`: its engine fails at a text, dies of another, and hangs at a third."""

import time

from pagantic_common.domain.errors import ErrorCode, Internal
from services.inference.__main__ import main

FAILING_TEXT = "\N{SKULL AND CROSSBONES}" * 4
DEADLY_TEXT = "\N{BIOHAZARD SIGN}" * 4
SLOW_TEXT = "\N{HOURGLASS}" * 4
SLOW_S = 60.0


def is_part(tokens, whole):
    return any(list(whole[start : start + len(tokens)]) == tokens for start in range(len(whole)))


def fail_at_the_texts():
    from services.inference.adapters.llama.engine import LlamaCppEngine  # noqa: PLC0415 - loads the engine

    decode = LlamaCppEngine.decode

    def decode_or_fail(self, slices):
        failing, deadly, slow = (
            self.tokenize(text, add_special=False, parse_special=False)
            for text in (FAILING_TEXT, DEADLY_TEXT, SLOW_TEXT)
        )
        if any(is_part(failing, part.tokens) for part in slices):
            raise Internal("llama_decode gave -3", code=ErrorCode.INFERENCE_ENGINE_ERROR)
        if any(is_part(deadly, part.tokens) for part in slices):
            raise ZeroDivisionError
        if any(is_part(slow, part.tokens) for part in slices):
            time.sleep(SLOW_S)
        return decode(self, slices)

    LlamaCppEngine.decode = decode_or_fail


if __name__ == "__main__":
    fail_at_the_texts()
    main()
