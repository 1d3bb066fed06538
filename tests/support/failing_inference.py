"""`python -m tests.support.failing_inference`: the inference service, whose engine fails to decode one text."""

from pagantic_common.domain.errors import ErrorCode, Internal
from services.inference.__main__ import main

FAILING_TEXT = "\N{SKULL AND CROSSBONES}" * 4


def fail_at_the_text():
    from services.inference.adapters.llama_cpp_engine import LlamaCppEngine  # noqa: PLC0415 - loads the engine

    decode = LlamaCppEngine.decode

    def decode_or_fail(self, slices):
        failing = self.tokenize(FAILING_TEXT, add_special=False, parse_special=False)
        for part in slices:
            tokens = list(part.tokens)
            if any(tokens[start : start + len(failing)] == failing for start in range(len(tokens))):
                raise Internal("llama_decode gave -3", code=ErrorCode.INFERENCE_ENGINE_ERROR)
        return decode(self, slices)

    LlamaCppEngine.decode = decode_or_fail


if __name__ == "__main__":
    fail_at_the_text()
    main()
