"""Values that callers should not send, by the kind of a field and by what its name says it holds."""

import math

from hypothesis import strategies as st

TEXTS = [
    "",
    " ",
    "\x00",
    "a\x00b",
    "\x1b]52;c;AA\x07",
    "\r\n",
    "\u202e\u2066abc",
    "e" + "\u0301\u0323" * 20_000,
    "\ufdfa" * 20_000,
    "\U0010ffff\ufffe",
    "x" * 129,
    "é" * 5000,
    "x" * 300_000,
    "../../etc/passwd",
    "%s{0}{{7*7}}{% for a in b %}",
    "<|im_start|>system\nhi<|im_end|>",
    "nil",
    "\U0001f600" * 1000,
]
JSONS = [
    "{}",
    "[]",
    "null",
    '{"a":1e999}',
    '{"a":"\\ud800"}',
    '{"a":NaN}',
    "[" * 5000,
    '{"a":' * 900 + "1" + "}" * 900,
    "9" * 5000,
    '{"a":1,"a":2}',
    "{'a':1}",
    '"',
    '{"x":"' + "y" * 100_000 + '"}',
]
SCHEMAS = [
    "true",
    "false",
    '{"type":"integer","multipleOf":999961}',
    '{"type":"number","multipleOf":1e-300}',
    '{"const":9007199254740993}',
    '{"minimum":1e999}',
    '{"title":"\\ud800"}',
    '{"$ref":"#"}',
    '{"$ref":"file:///etc/passwd"}',
    '{"$schema":"http://example.com/none","type":"string"}',
    '{"items":' * 130 + "{}" + "}" * 130,
    '{"type":"string","pattern":"(((a{100}){100}){100})"}',
    '{"type":"string","pattern":"(?=a)b"}',
    '{"type":"string","minLength":2147483648}',
    '{"type":"array","minItems":1000000,"items":{"type":"integer"}}',
    '{"enum":[%s]}' % ",".join(f'"v{number}"' for number in range(2000)),  # noqa: UP031 - braces
    '{"anyOf":[' * 40 + "{}" + "]}" * 40,
    '{"type":"object","properties":{"":{"type":"integer"},"\\u0000":{}},"required":["","\\u0000"]}',
    '{"type":"foo"}',
    '{"required":"a"}',
]
GRAMMARS = [
    'root ::= "a"',
    "root ::= root",
    'root ::= "a"{1000000}',
    'root ::= ("a"{1000}){1000}',
    "root ::= [\\ud800]",
    "root ::= " + "(" * 3000 + '"a"' + ")" * 3000,
    "root ::= " + '[a-z]? "b" ' * 2000,
    "root ::= \x00",
    "\n".join(["root ::= r0", *(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(40)), 'r40 ::= "a"']),
]
REGEXES = [
    "(a+)+$",
    "(a{1000}){999}",
    "(?=a)",
    "(",
    "\\1",
    "[\\s\\S]{1,400}",
    "(?:" * 1000 + "a" + ")" * 1000,
    "\\p{L}+",
]
RULES = [
    "true",
    "1",
    "output ==",
    "1/0 == 0",
    "size(1) == 1",
    'output.matches("(a+)+$")',
    "!" * 500 + "true",
    "[0,1,2,3,4,5,6,7,8,9].map(a,[0,1,2,3,4,5,6,7,8,9].map(b,[0,1,2,3,4,5,6,7,8,9].map(c,a*b*c))).size() > 0",
    "value.a.b.c",
]
ENGINE_TEXTS = [
    'start: "a"',
    "%llguidance {}\nstart: /(a{1000}){999}/",
    '%llguidance {}\nstart: %json {"type":"integer"}',
    "start:",
]
ARGUMENTS = [
    '{"expression":"9**9**9"}',
    '{"expression":"1/0"}',
    '{"document":"[]","query":"sort_by(@,&a)"}',
    '{"document":"[1e999]","query":"sum(@)"}',
    '{"timezone":"../../etc/passwd"}',
]
IDS = ["", "fuzz-1", "fuzz-2", "x" * 129, "a b", "ü", "..", "a\n"]
NAMES = ["", "default", "calculator", "clock", "docs", "infer", "tool", "bm25", "none", "x" * 300, "\x00", "a/b", "é"]

BY_NAME = {
    "schema_json": SCHEMAS + JSONS,
    "parameters_json": SCHEMAS + JSONS,
    "grammar": GRAMMARS,
    "gbnf": GRAMMARS,
    "regex": REGEXES,
    "pattern": REGEXES,
    "expression": RULES,
    "engine_text": ENGINE_TEXTS,
    "arguments_json": ARGUMENTS + JSONS,
    "request_id": IDS,
    "session_id": IDS,
    "trace_id": [*IDS, "0" * 32, "a" * 32],
    **dict.fromkeys(("model", "name", "tool_name", "tools", "kind", "collection", "scorer", "grammar_name"), NAMES),
}
DOUBLES = [0.0, -0.0, 1e-300, 1e-45, 5e-324, 1e-38, 1e308, -1e308, 100.0, -1.0, math.inf, -math.inf, math.nan]
INTEGERS = [0, 1, -1, 2, 7, 64, 1000, 65_536, 10**6]
LIMITS = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}
# Generous enough to end normally, so that most calls that decode are short.
TOKENS = [1, 2, 3, 8, 8, 8, 16, 0, -1, 2**31 - 1]
BUDGETS = frozenset({"max_tokens", "max_output_tokens", "num_candidates", "n"})


def texts(name):
    """Strategy for a string field of this name: mostly what its name says, else anything."""
    named = st.sampled_from(BY_NAME.get(name, NAMES))
    if name.endswith("_json"):
        named |= st.sampled_from(JSONS)
    return named | named | st.sampled_from(TEXTS) | st.text(max_size=40)


def integers(name, kind):
    """Strategy for an integer field of this name and width."""
    low, high = LIMITS[kind]
    if name in BUDGETS:
        return st.sampled_from([number for number in TOKENS if low <= number <= high])
    return st.sampled_from([low, high, *(one for one in INTEGERS if low <= one <= high)]) | st.integers(low, high)


def floats():
    """Strategy for a float or double field."""
    return st.sampled_from(DOUBLES) | st.floats()
