"""`python -m tests.support.failing_inference`: inference whose engine fails at one text and dies of another."""

from pagantic_common.domain.errors import ErrorCode, Internal
from services.inference.__main__ import main

FAILING_TEXT = "\N{SKULL AND CROSSBONES}" * 4
DEADLY_TEXT = "\N{BIOHAZARD SIGN}" * 4


def is_part(tokens, whole):
    return any(list(whole[start : start + len(tokens)]) == tokens for start in range(len(whole)))


def fail_at_the_texts():
    from services.inference.adapters.llama_cpp_engine import LlamaCppEngine  # noqa: PLC0415 - loads the engine

    decode = LlamaCppEngine.decode

    def decode_or_fail(self, slices):
        failing, deadly = (
            self.tokenize(text, add_special=False, parse_special=False) for text in (FAILING_TEXT, DEADLY_TEXT)
        )
        if any(is_part(failing, part.tokens) for part in slices):
            raise Internal("llama_decode gave -3", code=ErrorCode.INFERENCE_ENGINE_ERROR)
        if any(is_part(deadly, part.tokens) for part in slices):
            raise ZeroDivisionError
        return decode(self, slices)

    LlamaCppEngine.decode = decode_or_fail


if __name__ == "__main__":
    fail_at_the_texts()
    main()
