"""Holding calls that a model may make: free text stays free, and a call that begins satisfies its schema."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagantic_common.domain.messages import ToolDefinition
from pagantic_common.grammar.engine_text import byte_tokenizer, engine_text_of_schema, start_ready_matcher
from pagantic_common.testing.scripted_engine import END_TOKEN, VOCABULARY_SIZE, ByteVocabulary
from services.inference.adapters.llguidance_constraints import Lexer, LlguidanceMatcher
from services.inference.core.answers.call_matcher import CallMatcher
from services.inference.core.generation import ConstraintKind
from services.inference.core.prompts import call_schema
from tests.support.examples import examples
from tests.unit.inference.answers import GENERIC, HERMES, LLAMA3, MISTRAL, new_parser

CLOCK = ToolDefinition(
    "clock",
    "Tells the time.",
    '{"type":"object","properties":{"unit":{"enum":["c","f"]}},"required":["unit"],"additionalProperties":false}',
)
DIGIT = '{"type":"object","properties":{"n":{"type":"integer","minimum":0,"maximum":9}},"additionalProperties":false}'
MATHS = ToolDefinition("maths", "Calculates.", DIGIT)
CALL = '{"name": "clock", "arguments": {"unit": "c"}}'
BEGUN = '{"name": "clock", "arguments": {"unit": "'


def compiled(tools=(CLOCK, MATHS)):
    text = engine_text_of_schema(call_schema(tools))
    return LlguidanceMatcher(start_ready_matcher(text, byte_tokenizer()), Lexer(ConstraintKind.SCHEMA, text, 1000))


COMPILED = compiled()


def new_matcher(dialect=GENERIC, vocabulary=None, call=COMPILED):
    return CallMatcher(call, dialect, vocabulary or ByteVocabulary(), lambda text: list(text.encode()))


def allowed(matcher):
    masked = matcher.mask(np.zeros(VOCABULARY_SIZE, dtype=np.float32))
    return {int(token) for token in np.flatnonzero(np.isfinite(masked))}


def feed(matcher, text):
    for token in text.encode():
        matcher.accept(token)
    return matcher


def is_free(matcher):
    return len(allowed(matcher)) == VOCABULARY_SIZE


@pytest.mark.parametrize("dialect", [GENERIC, HERMES, LLAMA3, MISTRAL])
@pytest.mark.parametrize("before", ["{", "\n {", "```json\n{", "```{", "{\n  ", "```json\n{\n\t"])
def test_a_call_at_the_beginning_is_held_in_every_format(dialect, before):
    matcher = feed(new_matcher(dialect), before + '"name": "clock", "arguments": {')
    assert allowed(matcher) == {ord('"')}
    assert feed(matcher, '"unit": "').forced_tokens() == []
    assert allowed(matcher) == {ord("c"), ord("f")}, "the schema has no other unit"
    feed(matcher, 'c"}}')
    assert matcher.is_complete()
    assert matcher.is_stopped() is (dialect is GENERIC)


@pytest.mark.parametrize(
    ("dialect", "before"),
    [
        (HERMES, "I look.\n<tool_call>\n"),
        (LLAMA3, "I look. <|python_tag|>"),
        (MISTRAL, "I look. [TOOL_CALLS] ["),
        (MISTRAL, "[TOOL_CALLS]"),
    ],
)
def test_a_call_after_the_marker_of_the_format_is_held_and_free_text_follows(dialect, before):
    matcher = feed(new_matcher(dialect), before + BEGUN)
    assert allowed(matcher) == {ord("c"), ord("f")}
    feed(matcher, 'f"}}')
    assert is_free(matcher)
    assert matcher.is_complete()
    assert not matcher.is_stopped()


def test_two_calls_of_a_turn_are_both_held():
    matcher = feed(new_matcher(HERMES), f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{BEGUN}")
    assert allowed(matcher) == {ord("c"), ord("f")}
    feed(matcher, 'c"}}\n</tool_call>')
    assert matcher.is_complete()


@pytest.mark.parametrize(
    "text",
    [
        "It is noon.",
        'The call {"name": "clock"',
        '{"names": ["clock"]}',
        '{"unit": "c"}',
        "``` not a fence",
        '[{"name": "clock"',
        "<tool_call>",
        '<function=clock>{"unit": "x"',
        '{"unit": "x", "name": "clock"',
        '{\n  "names": ["clock"]',
    ],
)
@pytest.mark.parametrize("dialect", [GENERIC, HERMES, LLAMA3, MISTRAL])
def test_other_text_and_other_forms_of_calls_stay_free(dialect, text):
    matcher = new_matcher(dialect)
    logits = np.zeros(VOCABULARY_SIZE, dtype=np.float32)
    for token in text.encode():
        assert matcher.mask(logits) is logits, "a mask that changes nothing copies nothing"
        assert matcher.forced_tokens() == []
        matcher.accept(token)
    assert not matcher.is_complete()
    assert not matcher.is_stopped()


def test_a_call_that_was_not_held_is_told_from_those_that_were():
    matcher = feed(new_matcher(HERMES), f'<tool_call>\n{CALL}\n</tool_call>\n<function=clock>{{"unit": "x"}}')
    assert not matcher.is_complete()
    matcher = feed(new_matcher(HERMES), '{"name":"clock"}\n<tool_call>\n' + CALL)
    assert not matcher.is_complete()


def test_an_object_after_a_marker_that_is_no_call_is_not_held():
    matcher = feed(new_matcher(HERMES), '<tool_call>\n{"x')
    assert is_free(matcher)


def test_a_fork_goes_on_by_itself():
    matcher = feed(new_matcher(), BEGUN)
    other = feed(matcher.fork(), 'c"}}')
    assert other.is_complete()
    assert not matcher.is_complete()
    assert allowed(matcher) == {ord("c"), ord("f")}
    early = feed(new_matcher(), '{"na')
    feed(early.fork(), 'me": "')
    assert is_free(early)


def test_a_form_that_the_decoder_gives_up_frees_the_answer():
    matcher = feed(new_matcher(), BEGUN)
    matcher.accept(ord("x"))  # no mask allowed it
    assert is_free(matcher)
    assert not matcher.is_complete()


class PairVocabulary(ByteVocabulary):
    """A vocabulary that has each pair of some bytes as one token, too."""

    PAIRS = (b" {", b'{"', b'":', b' "', b'"}', b"}}", b"\n{", b"na", b"me")
    size = VOCABULARY_SIZE + len(PAIRS)

    def piece(self, token):
        return self.PAIRS[token - VOCABULARY_SIZE] if token >= VOCABULARY_SIZE else super().piece(token)

    def split(self, text, joins):
        """Return tokens of a text. `joins` says at each place whether a pair is taken where there is one."""
        tokens, position = [], 0
        while position < len(text):
            pair = text[position : position + 2]
            if pair in self.PAIRS and next(joins):
                tokens.append(VOCABULARY_SIZE + self.PAIRS.index(pair))
                position += 2
            else:
                tokens.append(text[position])
                position += 1
        return tokens


class BytesOfPairs:
    """Follows the compiled call byte by byte, with tokens of several bytes."""

    def __init__(self, inner, vocabulary):
        self.inner, self.vocabulary = inner, vocabulary

    def mask(self, logits):
        masked = np.full_like(logits, -np.inf)
        masked[:VOCABULARY_SIZE] = self.inner.mask(logits[:VOCABULARY_SIZE])
        for token in range(VOCABULARY_SIZE, self.vocabulary.size):
            first, second = self.vocabulary.piece(token)
            if np.isfinite(masked[first]):
                after = self.inner.fork()
                after.accept(first)
                if np.isfinite(after.mask(logits[:VOCABULARY_SIZE])[second]):
                    masked[token] = logits[token]
        return masked

    def accept(self, token):
        for byte in self.vocabulary.piece(token):
            self.inner.accept(byte)

    def forced_tokens(self):
        return self.inner.forced_tokens()

    def is_complete(self):
        return self.inner.is_complete()

    def is_stopped(self):
        return self.inner.is_stopped()

    def fork(self):
        return BytesOfPairs(self.inner.fork(), self.vocabulary)


@settings(max_examples=examples(60))
@given(
    st.sampled_from([(GENERIC, " "), (GENERIC, "\n"), (HERMES, "So <tool_call>\n"), (MISTRAL, "[TOOL_CALLS][")]),
    st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_a_call_is_held_however_its_beginning_is_cut_into_tokens(form, joins):
    dialect, before = form
    vocabulary = PairVocabulary()
    matcher = new_matcher(dialect, vocabulary, BytesOfPairs(COMPILED, vocabulary))
    for token in vocabulary.split((before + BEGUN).encode(), iter(joins)):
        assert np.isfinite(matcher.mask(np.zeros(vocabulary.size, dtype=np.float32))[token])
        matcher.accept(token)
    masked = matcher.mask(np.zeros(vocabulary.size, dtype=np.float32))
    assert set(np.flatnonzero(np.isfinite(masked))) == {ord("c"), ord("f")}


@settings(max_examples=examples(60))
@given(st.sampled_from([GENERIC, HERMES, LLAMA3, MISTRAL]), st.randoms(use_true_random=False), st.integers(0, 20))
def test_every_call_that_was_held_is_read_and_satisfies_its_schema(dialect, random, cut):
    """Write at random what the mask allows after a beginning that models write."""
    beginnings = {GENERIC: "", HERMES: "<tool_call>\n", LLAMA3: "<|python_tag|>", MISTRAL: "[TOOL_CALLS]["}
    text = beginnings[dialect] + '{"name"' + BEGUN[len('{"name"') : len('{"name"') + cut]
    matcher, written = feed(new_matcher(dialect), text), bytearray(text.encode())
    while not matcher.is_complete() and len(written) < 400:
        token = random.choice(sorted(allowed(matcher) - {END_TOKEN}))
        matcher.accept(token)
        written.append(token)
    parser = new_parser(dialect, ("clock", "maths"))
    parser.feed(written.decode(errors="replace"))
    parser.finish()
    if matcher.is_complete():
        (call,) = parser.calls
        arguments = json.loads(call.arguments_json)
        if call.name == "maths":
            assert arguments.keys() <= {"n"}
        else:
            assert arguments in ({"unit": "c"}, {"unit": "f"})
