import re

import pytest

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import MAX_DEPTH
from services.constraint.core.model import Rule
from services.constraint.core.rules.compiled import compile_rules


def failures(output: str, *rules: Rule) -> list[str]:
    return [found.message for found in compile_rules(rules).check(output)]


@pytest.mark.parametrize(
    ("kind", "parameters", "holds", "fails"),
    [
        ("not_empty", "", "a", " \n"),
        ("max_length", '{"length": 2}', "😀é", "abc"),
        ("min_length", '{"length": 2}', "éé", "é"),
        ("valid_json", "{}", '{"a": 1}', "{a: 1}"),
        ("regex", '{"pattern": "^A.c"}', "Aéc", "xAbc"),
        ("contains", '{"text": "b"}', "abc", "ac"),
        ("excludes", '{"text": "b"}', "ac", "abc"),
    ],
)
def test_builtin_rules(kind, parameters, holds, fails):
    rule = Rule("r", kind=kind, parameters_json=parameters)
    assert failures(holds, rule) == []
    assert len(failures(fails, rule)) == 1


@pytest.mark.parametrize(
    ("expression", "output", "holds"),
    [
        ("size(output) == 2", "😀é", True),
        ("output.size() == 2 && output != 'size('", "😀é", True),
        ("'size(x)' == output", "size(x)", True),
        ("value.a > 1.5", '{"a": 2}', True),
        ("value.a == 2.0 && value.l.all(x, x > 0.0)", '{"a": 2, "l": [1, 2]}', True),
        ("has(value.b)", '{"a": 2}', False),
        ("value == null", "null", True),
        ("output.startsWith('A')", "B", False),
    ],
)
def test_expressions_see_text_and_value(expression, output, holds):
    assert (failures(output, Rule("r", expression=expression)) == []) is holds


@pytest.mark.parametrize(
    ("expression", "output", "reason"),
    [
        ("value.b == 1.0", '{"a": 2}', "cannot be evaluated: there is no field 'b'"),
        ("value.a", '{"a": 2}', "gives a float, not true or false"),
        ("value.a == 1.0", "not json", "the output is not JSON"),
        ("output.lengthh() == 1", "", "cannot be evaluated: there is no function 'lengthh' for these values"),
        ("value.a + output == 1", '{"a": 2}', "cannot be evaluated: unsupported operation: float + string"),
        ("value.l[9] == 1.0", '{"l": []}', "cannot be evaluated: index out of bounds: 9"),
        ("1 / 0 == 1", "", "cannot be evaluated: division by zero"),
        ("value.map(x, value.map(y, value.map(z, x))).size() > 0", "[" + "1," * 99 + "1]", "more than 20000000 steps"),
    ],
)
def test_evaluation_error_fails_the_rule_and_says_so(expression, output, reason):
    [message] = failures(output, Rule("mine", expression=expression))
    assert message.startswith("rule 'mine': ")
    assert reason in message


def test_every_failure_is_reported_in_order():
    rules = [Rule(name, kind="contains", parameters_json='{"text": "z"}') for name in ("b", "a", "c")]
    assert [message[:8] for message in failures("x", *rules)] == ["rule 'b'", "rule 'a'", "rule 'c'"]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (Rule("r", expression="a &&"), "does not compile"),
        (Rule("r", expression="x" * 5000), "5000 characters"),
        (Rule("r", expression="(" * 500), "brackets"),
        (Rule("r", kind="shiny"), "no built-in rule is named 'shiny'"),
        (Rule("r", kind="max_length"), "takes exactly the parameter 'length'"),
        (Rule("r", kind="max_length", parameters_json='{"length": "2"}'), "must be a whole number"),
        (Rule("r", kind="max_length", parameters_json='{"length": true}'), "must be a whole number"),
        (Rule("r", kind="min_length", parameters_json='{"length": -1}'), "negative"),
        (Rule("r", kind="regex", parameters_json='{"pattern": "a(?=b)"}'), "not a regular expression of RE2"),
        (Rule("r", kind="contains", parameters_json="{"), "not JSON"),
        (Rule("r", kind="not_empty", parameters_json='{"x": 1}'), "takes no parameters"),
    ],
)
def test_wrong_rule_is_refused_by_name(rule, reason):
    with pytest.raises(InvalidRequest) as caught:
        compile_rules((rule,))
    assert str(caught.value).startswith("rule 'r': ")
    assert reason in str(caught.value)


def test_names_are_unique():
    rule = Rule("r", kind="not_empty")
    with pytest.raises(InvalidRequest, match="more than once"):
        compile_rules((rule, rule))


def test_a_value_that_is_nested_too_deeply_fails_the_rule():
    rules = compile_rules((Rule("r", expression="value != null"),))
    for depth in (MAX_DEPTH + 1, 600, 100_000):
        (found,) = rules.check("[" * depth + "]" * depth)
        assert "nested too deeply" in found.message
    assert rules.check("[" * MAX_DEPTH + "]" * MAX_DEPTH) == []


def test_a_pattern_that_is_no_text_is_refused():
    with pytest.raises(InvalidRequest, match="not a regular expression"):
        compile_rules((Rule("r", kind="regex", parameters_json='{"pattern": "\\ud800"}'),))


CLOSED = {
    "properties": {"age": {"type": "integer"}, "home": {"$ref": "#/$defs/home"}},
    "additionalProperties": False,
    "$defs": {"home": {"properties": {"city": {}}, "additionalProperties": False}},
}


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("value.agee > 18.0", "rule 'r': the schema allows no field 'agee' there: did you mean 'age'?"),
        ("has(value.home.zip)", "rule 'r': the schema allows no field 'zip' there: it declares 'city'"),
        ("value . home . citty.size() > 0", "allows no field 'citty' there: did you mean 'city'?"),
    ],
)
def test_a_field_that_the_schema_forbids_is_refused_before_there_is_an_output(expression, reason):
    with pytest.raises(InvalidRequest, match=re.escape(reason)):
        compile_rules((Rule("r", expression=expression),), CLOSED)


@pytest.mark.parametrize(
    "expression",
    [
        "value.age > 18.0 && value.home.city.size() > 0",
        "output != 'value.agee'",
        "value.age.a > 1.0",
        "value.size() > 0",
    ],
)
def test_what_the_schema_leaves_open_is_not_refused(expression):
    assert compile_rules((Rule("r", expression=expression),), CLOSED)
    assert compile_rules((Rule("r", expression="value.agee > 1.0"),), {"properties": {"age": {}}})


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("value.a >", "does not compile: column 10: the expression ends too early"),
        ("size(output) >* 2", "does not compile: column 15: unexpected '*'"),
        ("value['a'", "does not compile: column 10: missing ']' at the end"),
        ("valu.a == 1.0", "reads 'valu': there is only 'output' (text) and 'value' (parsed JSON)"),
    ],
)
def test_an_expression_that_is_none_is_refused_in_short_words(expression, reason):
    with pytest.raises(InvalidRequest, match=re.escape(reason)) as caught:
        compile_rules((Rule("r", expression=expression),))
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(("value", "kind"), [("1", "a number"), ("true", "a truth value"), ("null", "null")])
def test_the_size_of_what_has_none_is_told_in_our_words_and_nothing_stands_on_stderr(value, kind, capfd):
    (message,) = failures(value, Rule("r", expression="size(value) == 1"))
    assert message.endswith(f"size() takes a text, a list or a map, not {kind}")
    assert capfd.readouterr().err == ""
