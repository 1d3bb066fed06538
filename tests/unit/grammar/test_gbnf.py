import pytest
from llguidance import LLMatcher

from pagantic_common.grammar.engine_text import byte_tokenizer, check_engine_text, engine_text_of_gbnf
from pagantic_common.grammar.gbnf import MAX_DEPTH, parse_gbnf
from pagantic_common.grammar.problems import GrammarError


def derives(gbnf: str, text: str) -> bool:
    engine_text = engine_text_of_gbnf(gbnf)
    check_engine_text(engine_text)
    matcher = LLMatcher(byte_tokenizer(), engine_text, log_level=0)
    tokens = list(text.encode())
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("gbnf", "accepted", "refused"),
    [
        ('root ::= "a" "b" | "c"', ["ab", "c"], ["a", "abc", ""]),
        ('root ::= a b\na ::= [a-z]+\nb ::= "z" "1"', ["az1", "zz1"], ["z1", "az"]),
        ('root ::= ("a" |\n "b"\n)*', ["", "abba"], ["c"]),
        ('root ::= "x" |\n  "y" # comment "\n# another\n', ["x", "y"], ["z"]),
        (r'root ::= "\n\t\r\\\"\x41\u00e9\U0001F600"', ['\n\t\r\\"Aé😀'], ["a"]),
        (r"root ::= [\U0001F600-\U0001F64F] [^a\n] [\]x-]", ["😁b]", "😁b-", "😁éx"], ["😁a]", "😁\n]"]),
        ("root ::= . .", ["é\n", "😀a"], ["a", "abc"]),
        ('root ::= "ab"{2} "c"{1,} "d"{0,1} "e"{1,2}', ["ababce", "ababccdee"], ["abce", "ababceee", "ababe"]),
        ('root ::= "a"? "b"+ ""', ["b", "abb"], ["a", ""]),
        ('root ::= "x"{0} "y" | ', ["y", ""], ["xy"]),
        ('root ::= my-rule-2\nmy-rule-2 ::= "a" other*\nother ::= "b" my-rule-2', ["a", "aba", "ababa"], ["ab"]),
        ('root ::= ("a"?)+', ["", "aaa"], ["b"]),
    ],
)
def test_grammar_derives_exactly_its_language(gbnf, accepted, refused):
    assert [text for text in accepted if not derives(gbnf, text)] == []
    assert [text for text in refused if derives(gbnf, text)] == []


@pytest.mark.parametrize(
    ("gbnf", "message"),
    [
        ('rootRule ::= "a"', "no rule named exactly 'root'"),
        ("", "no rule named exactly 'root'"),
        ("root ::= a\n  | b", "line 2 column 3: a rule name was expected, not '|'"),
        ('root ::= "a" missing', "line 1 column 14: rule 'missing' is not defined"),
        ('root ::= "abc', "line 1 column 10: the string is not closed"),
        ('root ::= ("a"\n"b"', "line 1 column 10: the group is not closed"),
        ("root ::= )", "')' closes no group"),
        ("root ::= *", "'*' follows nothing"),
        ("root ::= [z-a]", "reversed"),
        ("root ::= []", "empty"),
        (r'root ::= "\q"', "unknown escape"),
        (r'root ::= "\x4"', "needs 2 hexadecimal digits"),
        (r'root ::= "\ud83d"', "no Unicode character"),
        (r'root ::= "\UFFFFFFFF"', "no Unicode character"),
        ('root ::= "a"{3,1}', "reversed"),
        ('root ::= "a"{9999999}', "more than 2000 repetitions"),
        ('root ::= "a"{,3}', "a number was expected"),
        ("root ::= <think>", "token literals"),
        ("root ::= <[1000]>", "token literals"),
        ('root = "a"', "'::=' was expected after 'root'"),
        ('root ::= root "a" | "b"', "line 1 column 1: rule 'root' is left-recursive"),
        ('root ::= e? a\ne ::= ""\na ::= e root', "left-recursive"),
        ("root ::= " + "(" * (MAX_DEPTH + 1) + '"a"' + ")" * (MAX_DEPTH + 1), "nested deeper"),
        ('root ::= "a"' + "*" * (MAX_DEPTH + 1), "nested deeper"),
        ("root ::= " + "(" * 100_000, "nested deeper"),
    ],
)
def test_wrong_grammar_is_refused_with_place_and_reason(gbnf, message):
    with pytest.raises(GrammarError) as caught:
        parse_gbnf(gbnf)
    assert message in str(caught.value)


def test_every_undefined_rule_is_named():
    with pytest.raises(GrammarError) as caught:
        parse_gbnf("root ::= a b\nc ::= d")
    assert [problem.message for problem in caught.value.problems] == [
        "rule 'a' is not defined",
        "rule 'b' is not defined",
        "rule 'd' is not defined",
    ]


def test_unreachable_repeated_and_endless_rules_are_warned_of():
    grammar = parse_gbnf('root ::= "a" loop?\nspare ::= "b"\nloop ::= "x" loop\nspare ::= "c"')
    assert [str(warning) for warning in grammar.warnings] == [
        "line 4 column 1: rule 'spare' is defined again; the last counts",
        "line 4 column 1: rule 'spare' cannot be reached from root",
        "line 3 column 1: rule 'loop' never ends: it derives no finite text",
    ]


def test_long_chain_of_rules_needs_no_recursion():
    chain = "\n".join(f'r{number} ::= "a" r{number + 1}' for number in range(3000))
    assert len(parse_gbnf(f'root ::= r0\n{chain}\nr3000 ::= "b"').rules) == 3002
