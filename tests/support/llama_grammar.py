"""llama.cpp's own grammar matcher, asked in a process of its own: `python -m tests.support.llama_grammar`.

Reads lines of JSON {"grammar": text, "texts": [...]} and answers each with a line: a list of booleans, or null
for a text with a character that is no token. The matcher ends the process at some grammars.
"""

import ctypes
import json
import sys

import llama_cpp

from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.llama.tokenizer import LlamaTokenizer


def load_vocabulary():
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(find_default_model()).encode(), params)
    return llama_cpp.llama_model_get_vocab(model)


class Matcher:
    """Decides texts character by character.

    Only characters that are a token: of one that is parted over tokens, llama.cpp refuses the first bytes where a
    negated class names another character that begins so.
    """

    def __init__(self):
        self.vocab = load_vocabulary()
        tokenizer = LlamaTokenizer(self.vocab)
        pieces = ((token, tokenizer.render(token, with_special=False)) for token in range(tokenizer.size))
        texts = ((token, piece.decode("utf-8", "replace")) for token, piece in pieces)
        self.token_of = {text: token for token, text in texts if len(text) == 1 and text != "\ufffd"}
        self.end = llama_cpp.llama_vocab_eos(self.vocab)

    def decide(self, grammar, texts):
        sampler = llama_cpp.llama_sampler_init_grammar(self.vocab, grammar.encode(), b"root")
        assert sampler, "llama.cpp does not take the grammar"
        try:
            return [self.matches(sampler, text) for text in texts]
        finally:
            llama_cpp.llama_sampler_free(sampler)

    def matches(self, sampler, text):
        llama_cpp.llama_sampler_reset(sampler)
        for char in text:
            token = self.token_of.get(char)
            if token is None:
                return None
            if not self.allows(sampler, token):
                return False
            llama_cpp.llama_sampler_accept(sampler, token)
        return self.allows(sampler, self.end)

    @staticmethod
    def allows(sampler, token):
        data = (llama_cpp.llama_token_data * 1)(llama_cpp.llama_token_data(token, 1.0, 0.0))
        array = llama_cpp.llama_token_data_array(data, 1, -1, False)
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
        return data[0].logit > -1e30


def main():
    matcher = Matcher()
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.write(json.dumps(matcher.decide(asked["grammar"], asked["texts"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
