"""Writes the tokenizer of a GGUF file with byte-level pairs, as SmolLM2's, in the form that gateways read."""

import json
import struct
from itertools import repeat

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_CONTROL = 3


def read_metadata(path):
    """Return the metadata of a GGUF file of version 3."""
    with path.open("rb") as file:

        def number(form):
            return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))[0]

        def text():
            return file.read(number("Q")).decode()

        def value(kind):
            match kind:
                case 8:
                    return text()
                case 9:
                    inner, count = number("I"), number("Q")
                    return [value(one) for one in repeat(inner, count)]
                case _:
                    return number(_NUMBERS[kind])

        assert file.read(4) == b"GGUF"
        assert number("I") == 3
        number("Q")
        return {text(): value(number("I")) for _ in range(number("Q"))}


def write_tokenizer(model, folder):
    """Write the tokenizer and the chat template of a model."""
    found = read_metadata(model)
    tokens, kinds = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    special = [
        {
            "id": number,
            "content": token,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == _CONTROL
    ]
    bytes_of_text = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytes_of_text],
        },
        "decoder": bytes_of_text,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": found["tokenizer.ggml.merges"],
        },
    }
    config = {
        "chat_template": found["tokenizer.chat_template"],
        "bos_token": tokens[found["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[found["tokenizer.ggml.eos_token_id"]],
        "tokenizer_class": "GPT2Tokenizer",
    }
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
