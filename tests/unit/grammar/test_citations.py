import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from pagantic_common.domain.text.boundaries import find_boundaries
from pagantic_common.domain.text.citations import ABSTENTION_JSON, MIN_QUOTE_WORDS, CitationPolicy, find_problems
from pagantic_common.domain.text.words import split_words
from pagantic_common.grammar.citations import engine_text_of_citations
from pagantic_common.grammar.engine_text import byte_tokenizer, find_beginnings, start_matcher, start_ready_matcher
from tests.support.hostile_sources import HOSTILE_SOURCES
from tests.support.quote_samples import CUT_QUOTES, WHOLE_QUOTES

POLICY = CitationPolicy(max_claims=2, max_quote_words=12)
SOURCE = 'The (red) hat, it says, costs "9 €"\nper day. C:\\hats\\new is its path.'
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet='ab "\\\n\t\u0000\u007f\u2028é漢ก\u0e31(.,)n/u0', max_size=60),
    st.sampled_from(HOSTILE_SOURCES),
)


def accepts(engine_text, output):
    matcher = start_matcher(engine_text, byte_tokenizer())
    tokens = list(output.encode())
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()


def answer(*claims):
    return json.dumps(
        {
            "in_sources": True,
            "claims": [{"source": source, "quote": quote, "text": text} for text, source, quote in claims],
        },
        ensure_ascii=False,
    )


def runs_of(source, least, most):
    """Return every run of words of these lengths from boundary to boundary, with what belongs to its numbers."""
    boundaries = find_boundaries(source)
    return [
        source[first.begins[-1] : last.ends[0]]
        for first in boundaries
        for last in boundaries
        if least <= last.words - first.words <= most
    ]


def bytes_allowed(matcher):
    mask = matcher.compute_bitmask()
    return [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]


def random_output(engine_text, draw):
    """Walk the grammar at random, with short claims, up to an end."""
    matcher = start_matcher(engine_text, byte_tokenizer())
    output = b""
    while not matcher.is_stopped():
        allowed = bytes_allowed(matcher)
        if not allowed:
            break
        byte = draw.choice([ord('"')] * (ord('"') in allowed and draw.random() < 0.3) or allowed)
        assert matcher.consume_token(byte), matcher.get_error()
        output += bytes([byte])
    assert matcher.is_accepting()
    return output.decode()


def test_the_beginnings_whose_masks_are_computed_ahead_are_those_of_quotes():
    engine_text = engine_text_of_citations([SOURCE, "!", "a b c"], POLICY)
    beginning = '{"in_sources": true, "claims": [{"source": '
    quotes = [f'{beginning}{number}, "quote": ' for number in (1, 3)]  # source 2 has no words
    assert find_beginnings(engine_text) == [text for quote in quotes for text in (quote, f'{quote}"')]
    for text in find_beginnings(engine_text):
        assert start_matcher(engine_text, byte_tokenizer()).validate_tokens(list(text.encode())) == len(text)
    ready = start_ready_matcher(engine_text, byte_tokenizer())
    assert bytes_allowed(ready) == bytes_allowed(start_matcher(engine_text, byte_tokenizer()))


@pytest.mark.parametrize(
    "quote",
    [
        "red) hat, it",
        "The (red) hat",
        "(red) hat, it says,",
        "is its path.",
        'says, costs "9 €"',
        '"9 €"\nper day.',
        "day. C:\\hats\\new",
        "C:\\hats\\new",
    ],
)
def test_a_part_of_the_source_can_be_quoted(quote):
    assert quote in SOURCE
    assert accepts(engine_text_of_citations([SOURCE], POLICY), answer(("x", 1, quote)))


@pytest.mark.parametrize(
    "quote", ["", "hat", "red hat", "The red hat", "the (red) hat", "he (red) hat", "The (red) ha", "hat, it says, not"]
)
def test_nothing_else_can_be_quoted(quote):
    assert not accepts(engine_text_of_citations([SOURCE], POLICY), answer(("x", 1, quote)))


@pytest.mark.parametrize(("source", "quote", "is_whole"), [*CUT_QUOTES, *WHOLE_QUOTES])
def test_a_quote_that_cuts_a_word_or_a_number_cannot_be_decoded(source, quote, is_whole):
    assert quote in source
    assert accepts(engine_text_of_citations([source], POLICY), answer(("x", 1, quote))) is is_whole


def test_the_decoder_and_the_check_agree_on_what_can_be_quoted():
    policy = CitationPolicy(max_quote_words=6, may_abstain=False)
    for source in ("a-b-c-d-e-f", "a-b-c-d-e-f-g", "one a-b-c-d-e-f-g", "--"):
        can_abstain = accepts(engine_text_of_citations([source], policy), ABSTENTION_JSON)
        assert can_abstain is not any(find_problems({"in_sources": False}, [source], policy))
        assert accepts(engine_text_of_citations([source], policy), answer(("x", 1, source))) is (len(source) == 11)


def test_a_quote_is_from_the_source_that_the_claim_names():
    engine_text = engine_text_of_citations(["one two three four", "", "five six seven"], POLICY)
    assert accepts(engine_text, answer(("x", 1, "two three four"), ("y", 3, "five six seven")))
    assert not accepts(engine_text, answer(("x", 3, "two three four")))
    assert not accepts(engine_text, answer(("x", 2, "")))
    assert not accepts(engine_text, answer(("x", 1, "three four five six")))


def test_a_source_of_few_words_is_quoted_whole_and_without_words_the_answer_is_an_abstention():
    assert accepts(engine_text_of_citations(["Noon."], POLICY), answer(("x", 1, "Noon.")))
    nothing = engine_text_of_citations(["--", "\u200f"], CitationPolicy(may_abstain=False))
    assert accepts(nothing, ABSTENTION_JSON)
    assert not accepts(nothing, answer(("x", 1, "--")))


def test_bounds_of_claims_and_abstentions_hold():
    source, claim = "one two three four five", ("x", 1, "one two three")
    engine_text = engine_text_of_citations([source], POLICY)
    assert accepts(engine_text, ABSTENTION_JSON)
    assert not accepts(engine_text_of_citations([source], CitationPolicy(may_abstain=False)), ABSTENTION_JSON)
    assert not accepts(engine_text, answer())
    assert not accepts(engine_text, answer(claim, claim, claim))
    assert accepts(engine_text, answer(("x" * 300, 1, "one two three")))
    assert not accepts(engine_text, answer(("x" * 301, 1, "one two three")))


def test_no_quote_is_longer_than_the_bound():
    source = " ".join(f"w{number}" for number in range(100))
    engine_text = engine_text_of_citations([source], POLICY)
    for quote in runs_of(source, 13, 14):
        assert not accepts(engine_text, answer(("x", 1, quote)))
    assert any(accepts(engine_text, answer(("x", 1, quote))) for quote in runs_of(source, 12, 12))


@given(st.lists(TEXTS, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_every_quote_that_the_decoder_allows_is_part_of_its_source(sources, draw):
    answered = json.loads(random_output(engine_text_of_citations(sources, POLICY), draw))
    assert not list(find_problems(answered, sources, POLICY))
    for claim in answered.get("claims", []):
        source = sources[claim["source"] - 1]
        assert claim["quote"] in source
        least = min(MIN_QUOTE_WORDS, len(split_words(source)))
        assert least <= len(split_words(claim["quote"])) <= POLICY.max_quote_words


@given(TEXTS, st.data())
def test_every_run_of_words_can_be_quoted(source, data):
    least = min(MIN_QUOTE_WORDS, len(split_words(source)))
    runs = runs_of(source, max(1, least), POLICY.max_quote_words // 2)
    if runs:
        quote = data.draw(st.sampled_from(runs))
        assert accepts(engine_text_of_citations(["other words", source], POLICY), answer(("x", 2, quote)))


def test_the_text_grows_with_the_words_of_the_sources():
    short, long = (len(engine_text_of_citations(["word other " * count], POLICY)) for count in (100, 1000))
    assert long < 12 * short
    assert isinstance(start_matcher(engine_text_of_citations(["word " * 3000], POLICY), byte_tokenizer()), LLMatcher)


@pytest.mark.parametrize("max_claims", [1, 2, 32])
def test_an_answer_has_as_many_claims_as_allowed_and_no_more(max_claims):
    text = engine_text_of_citations([SOURCE], CitationPolicy(max_claims=max_claims, max_quote_words=12))
    claim = ("It costs.", 1, 'costs "9 €"\nper day')
    assert accepts(text, answer(*[claim] * max_claims))
    assert not accepts(text, answer(*[claim] * (max_claims + 1)))
