import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from pagantic_common.grammar.engine_text import byte_tokenizer, engine_text_of_gbnf
from pagantic_common.grammar.gbnf import parse_gbnf
from pagantic_common.grammar.problems import GrammarError
from tests.support.examples import examples

CHARS = 'ab"\\\n[]^-éß😀'


def quoted(text: str) -> str:
    return '"' + "".join(f"\\U{ord(char):08X}" if char in '"\\\n' else char for char in text) + '"'


def class_of(chars: str) -> str:
    return (
        "[" + "".join(f"\\u{ord(char):04X}" if ord(char) < 0x10000 else f"\\U{ord(char):08X}" for char in chars) + "]"
    )


# A piece of GBNF with a text that it derives.
leaves = st.one_of(
    st.text(CHARS, max_size=4).map(lambda text: (quoted(text), text)),
    st.text(CHARS, min_size=1, max_size=4).map(lambda chars: (class_of(chars), chars[-1])),
    st.sampled_from(CHARS).map(lambda char: (".", char)),
    st.sampled_from(CHARS).map(lambda char: ("[^z]", char)),
)


def extend(pieces):
    pairs = st.lists(pieces, min_size=1, max_size=3)
    return st.one_of(
        pairs.map(lambda found: (" ".join(f"({gbnf})" for gbnf, _ in found), "".join(text for _, text in found))),
        pairs.map(lambda found: (" | ".join(gbnf for gbnf, _ in found), found[-1][1])),
        st.tuples(pieces, st.sampled_from([("*", 0), ("*", 3), ("+", 2), ("?", 0), ("{2}", 2), ("{1,3}", 2)])).map(
            lambda pair: (f"({pair[0][0]}){pair[1][0]}", pair[0][1] * pair[1][1])
        ),
    )


@settings(deadline=None, max_examples=examples(150))
@given(st.recursive(leaves, extend, max_leaves=8))
def test_what_a_grammar_derives_it_accepts(piece):
    gbnf, text = piece
    matcher = LLMatcher(byte_tokenizer(), engine_text_of_gbnf(f"root ::= {gbnf}\n"), log_level=0)
    assert matcher.consume_tokens(list(text.encode()))
    assert matcher.is_accepting()


@settings(deadline=None)
@given(st.text('abroot ::=|()[]*+?{},.\\"#\n-^0<'))
def test_any_text_is_a_grammar_or_refused(text):
    with contextlib.suppress(GrammarError):
        parse_gbnf("root ::= " + text)
