"""Converts text to a model's tokens and back."""

from __future__ import annotations

import ctypes
import re
import unicodedata
from collections.abc import Sequence
from functools import cache, cached_property
from itertools import islice, pairwise

import llama_cpp

from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest
from services.inference.core.answers.dialect import MEANT_CONTROL_TEXTS

# llama.cpp decomposes text for WordPiece models, but keeps only the first letter of a Hangul syllable. The tokenizer
# therefore decomposes these syllables itself.
_HANGUL = re.compile("[\uac00-\ud7a3]+")
_UNKNOWN_WORD_BYTES = 32
_PIECE_BYTES = 512
_MAX_ADDED_TOKENS = 8  # maximum number of special tokens that a tokenizer adds to a text
# llama.cpp's time for a text is quadratic in its number of markers, so texts with more markers are cut.
_MARKERS_AT_ONCE = 32
_CONTROL = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
_USER_DEFINED = llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
_MARKED = _CONTROL | _USER_DEFINED


class LlamaTokenizer:
    """Converts text to a model's tokens and back; callable from any thread."""

    def __init__(self, vocab: llama_cpp.llama_vocab_p) -> None:
        self.vocab = vocab
        self.size: int = llama_cpp.llama_vocab_n_tokens(vocab)
        kind = llama_cpp.llama_vocab_type(vocab)
        self._is_word_piece = kind == llama_cpp.LLAMA_VOCAB_TYPE_WPM
        self._may_cut = kind in (llama_cpp.LLAMA_VOCAB_TYPE_BPE, llama_cpp.LLAMA_VOCAB_TYPE_SPM)

    @cached_property
    def longest_token_bytes(self) -> int:
        """The maximum number of bytes of text in one token, including an unknown word."""
        return max(_UNKNOWN_WORD_BYTES, *(len(self.render(token, with_special=True)) for token in range(self.size)))

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Split text into token ids."""
        if self._is_word_piece:
            text = _HANGUL.sub(lambda syllables: unicodedata.normalize("NFD", syllables.group()), text)
        first, *others = self._cut(text, adds_special=add_special, parses_special=parse_special)
        tokens = self._tokens_of(first, add_special=add_special, parse_special=parse_special)
        for other in others:
            tokens += self._tokens_of(other, add_special=False, parse_special=parse_special)
        return tokens

    def _tokens_of(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        data = text.encode("utf-8")
        size = len(data) + _MAX_ADDED_TOKENS
        tokens = (llama_cpp.llama_token * size)()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), tokens, size, add_special, parse_special)
        if count < 0:
            raise Internal(f"text of {len(data)} bytes gave {-count} tokens", code=ErrorCode.INFERENCE_ENGINE_ERROR)
        return list(tokens[:count])

    def _cut(self, text: str, *, adds_special: bool, parses_special: bool) -> list[str]:
        """Cut text into parts that, tokenized separately, yield the tokens of the whole text.

        Each part has few markers. Each part except the first begins with a marker, because no token crosses the start
        of a marker.
        """
        if not self._may_cut or (adds_special and llama_cpp.llama_vocab_get_add_eos(self.vocab)):
            return [text]
        markers = self._markers(parses_special=parses_special)
        if markers is None:
            return [text]
        begins = [match.start() for match in islice(markers.finditer(text), _MARKERS_AT_ONCE, None, _MARKERS_AT_ONCE)]
        return [text[begin:end] for begin, end in pairwise([0, *begins, len(text)])]

    @cache  # noqa: B019 - a tokenizer lives as long as its model
    def _markers(self, *, parses_special: bool) -> re.Pattern[str] | None:
        """Return a pattern that matches the texts of special tokens, or None if there are no such texts.

        Also returns None if any special token includes the space before it, because the text must then not be cut.
        """
        if self.texts_with(llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP):
            return None
        markers = self.texts_with(_MARKED) if parses_special else self.texts_with(_USER_DEFINED, without=_CONTROL)
        texts = sorted((text for text in markers if text.strip()), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts))) if texts else None

    def texts_with(self, attributes: int, *, without: int = 0) -> tuple[str, ...]:
        """Return the texts of the tokens with any attribute in `attributes` and no attribute in `without`."""
        texts = []
        for token in range(self.size):
            token_attributes = llama_cpp.llama_vocab_get_attr(self.vocab, token)
            if token_attributes & attributes and not token_attributes & without:
                texts.append(self.render(token, with_special=True).decode("utf-8", "replace"))
        return tuple(text for text in texts if text)

    def detokenize(self, tokens: Sequence[int], *, with_special: bool) -> bytes:
        """Return the bytes of the tokens. Ids outside the vocabulary are skipped."""
        valid = (token for token in tokens if 0 <= token < self.size)
        return b"".join(self.render(token, with_special=with_special) for token in valid)

    def traits(self, token: int) -> tuple[bytes, bool, bool]:
        """Return the bytes of a token, whether it is a control token, and whether it ends an output."""
        is_control = bool(llama_cpp.llama_vocab_get_attr(self.vocab, token) & _CONTROL)
        return self.render(token, with_special=True), is_control, bool(llama_cpp.llama_vocab_is_eog(self.vocab, token))

    def render(self, token: int, *, with_special: bool) -> bytes:
        """Return the bytes of a token. With `with_special`, a control token yields its text."""
        size = _PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, size, 0, with_special)
            if length >= 0:
                return buffer.raw[:length]
            size = -length


def common_tokens(model: LlamaTokenizer, draft: LlamaTokenizer) -> int:
    """Return the number of tokens that a model and its draft model share: the size of the smaller vocabulary.

    Raises InvalidRequest if a token has different bytes or a different role in the draft model.
    """
    size = min(model.size, draft.size)
    for token in range(size):
        expected, actual = model.traits(token), draft.traits(token)
        if expected != actual:
            raise InvalidRequest(f"its token {token} is {_described(actual)}, that of the model {_described(expected)}")
    return size


def _described(traits: tuple[bytes, bool, bool]) -> str:
    text, is_control, is_end = traits
    return f"{text!r}" + " (control)" * is_control + " (end)" * is_end


class LlamaVocabulary:
    """The model's vocabulary, read once."""

    def __init__(self, tokenizer: LlamaTokenizer) -> None:
        vocab = tokenizer.vocab
        self.size = tokenizer.size
        self.end_tokens = frozenset(token for token in range(self.size) if llama_cpp.llama_vocab_is_eog(vocab, token))
        self.control_texts = tokenizer.texts_with(_MARKED)
        meant = _meant_control_tokens(tokenizer)
        self._pieces = [tokenizer.render(token, with_special=token in meant) for token in range(self.size)]

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token. They are empty for a control token that does not mark a part of an answer."""
        return self._pieces[token]


def _meant_control_tokens(tokenizer: LlamaTokenizer) -> set[int]:
    """Return the control tokens whose text the answer parser needs."""
    tokenized = (tokenizer.tokenize(text, add_special=False, parse_special=True) for text in MEANT_CONTROL_TEXTS)
    return {tokens[0] for tokens in tokenized if len(tokens) == 1}
