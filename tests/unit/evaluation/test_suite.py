"""Suites: their files, their mistakes, the requests of their cases, and cases of recorded executions."""

import json

import pytest
import yaml
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from gateway.evaluation.suite.files import read_suite
from gateway.evaluation.suite.model import SuiteError
from gateway.evaluation.suite.reading import suite_of
from gateway.evaluation.suite.recorded import case_of
from gateway.evaluation.suite.requests import Settings, request_of
from gateway.written.errors import WrittenError
from gateway.written.plain_yaml import parse_yaml
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import decision_pb2, execution_pb2
from pagantic_common.domain.ids import is_id
from tests.support.pages import ROOT, blocks

SUITE = """
name: shop
request:
  mode: structured
  schema: {type: object}
  system: Be brief.
  hints: {max_tokens: 40, temperature: 0}
scorers: [exact, {judge: {rubric: It is polite.}}, trajectory, numeric: ]
cases:
  - name: lamp
    input: How many lamps are there?
    expected: 12
    tools: [stock, {name: find, arguments: {q: lamp}}]
    relevant: [a.txt, b.txt]
    tags: [no, 2026-01-01]
    request: {hints: {max_tokens: 9}, context: docs, metadata: {team: a}}
  - input: [{role: user, content: hi}, {role: assistant, content: hello}, {role: user, content: bye}]
    expected: null
    request: {mode: chat}
"""

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def suite():
    return suite_of(parse_yaml(SUITE))


def request(suite, index, **settings):
    return request_of(suite, suite.cases[index], Settings(**settings), "e1")


def test_a_suite_and_its_hash_survive_their_way_through_json(suite):
    again = suite_of(json.loads(json.dumps(suite.as_json())))
    assert again == suite
    assert again.hash == suite.hash
    assert [case.key for case in again.cases] == [case.key for case in suite.cases]
    assert suite.cases[1].expectation.expected is None, "null is expected, and not missing"


def test_yaml_has_the_values_of_json_alone(suite):
    assert suite.cases[0].tags == ["no", "2026-01-01"]
    assert parse_yaml("[yes, 0o7, 0x10, 1_000, 12:30:00, 01, .5, 1e3, -2, true, null, ~]") == [
        *("yes", "0o7", "0x10", "1_000", "12:30:00", "01", ".5"), 1000.0, -2, True, None, None
    ]  # fmt: skip


@given(JSON_VALUES)
def test_json_is_yaml(value):
    # YAML's writer escapes what JSON's leaves as it is, such as control characters and halves of surrogate pairs.
    assert parse_yaml(yaml.dump(value, Dumper=QuotingDumper, allow_unicode=False)) == value


class QuotingDumper(yaml.SafeDumper):
    def ignore_aliases(self, data):
        return True


QuotingDumper.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, '"'))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &x 1\nb: *x", "line 2: aliases are not taken"),
        ("a: 1\na: 2", "line 1: a mapping has the same key twice"),
        ("1: a", "line 1: keys are texts"),
        ("a: [", "not YAML: line 1"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("? [a]\n: b", "not YAML|keys are texts"),
        ("[" * 2000, "not YAML"),
        ("a: 1\n---\nb: 2", "another document"),
        ("\x00", "not YAML"),
        ('"\\ud800"', "half of a surrogate pair"),
        ("1e999", "not JSON"),
        ("[" * 257 + "]" * 257, "nested too deeply"),
    ],
)
def test_yaml_that_is_more_than_json_is_refused(text, reason):
    with pytest.raises(WrittenError, match=reason):
        parse_yaml(text)


def test_a_case_gets_the_scorers_for_which_it_has_what_they_need(suite):
    assert [scorer.label for scorer in suite.scorers_of(suite.cases[0])] == ["exact", "judge", "trajectory", "numeric"]
    assert [scorer.label for scorer in suite.scorers_of(suite.cases[1])] == ["exact", "judge"]


def test_a_scorer_of_the_case_takes_the_place_of_that_of_the_suite():
    suite = suite_of(
        {
            "scorers": [{"exact": {"ignore_case": True}}],
            "cases": [{"input": "a", "expected": "B", "scorers": ["exact", {"exact": {"name": "x", "pointer": "/x"}}]}],
        }
    )
    first, second = suite.scorers_of(suite.cases[0])
    assert (first.ignore_case, first.label, second.label) == (False, "exact", "x")


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ([], "a suite is a mapping"),
        ({}, "the suite has no cases"),
        ({"cases": 3}, "cases: input should be a valid list"),
        ({"cases": [3]}, "case 1: "),
        ({"cases": [{"input": "a"}], "scorers": ["exact"]}, "'case-0001' has no scorer"),
        ({"cases": [{"input": " ", "expected": 1}], "scorers": ["exact"]}, "'case-0001' has no input"),
        ({"cases": [{"input": "a", "expectd": 1}]}, "case 1: expectd: there is no such field"),
        ({"scorers": ["exakt"]}, "scorers.0: there is no scorer 'exakt': there are 'exact', 'label', 'regex'"),
        ({"scorers": [{"a": 1, "b": 2}]}, "scorers.0: a scorer is written as `exact`"),
        ({"cases": [{"input": "a", "name": "a b"}]}, "case 'a b': name: "),
        ({"cases": [{"input": "a", "name": "n" * 46}]}, "name: "),
        ({"cases": [{"input": "a", "expected": 1, "scorers": ["trajectory"]}]}, "'case-0001' has no tools, which its"),
        ({"cases": [{"input": "a", "expected": "("}], "scorers": ["regex"]}, "'case-0001': '\\(' is not a regular"),
        (
            {"cases": [{"input": "a", "expected": 1}], "scorers": ["exact", "ndcg"]},
            "the scorer 'ndcg' scores no case: it needs relevant",
        ),
        (
            {"cases": [{"input": "a", "expected": 1}], "scorers": ["exact", "exact"]},
            "two scorers have the name 'exact'",
        ),
        (
            {
                "cases": [
                    {"input": "a", "expected": 1, "scorers": ["exact"]},
                    {"input": "b", "expected": 1, "scorers": [{"numeric": {"name": "exact"}}]},
                ]
            },
            "'exact' names scorers of two types",
        ),
        (
            {"cases": [{"input": "a", "expected": "maybe", "scorers": [{"label": {"labels": ["yes", "no"]}}]}]},
            "'case-0001': 'maybe' is none of the labels",
        ),
        (
            {"cases": [{"name": "a", "input": "a", "expected": 1}] * 2, "scorers": ["exact"]},
            "two cases are named 'a'",
        ),
        ({"cases": [{"input": "a"}], "scorers": [{"judge": {}}]}, "has no scorer"),
        ({"cases": [{"input": "a", "relevant": {"d": 0}}], "scorers": ["recall"]}, "has no scorer"),
    ],
)
def test_a_wrong_suite_is_refused_with_the_place_and_the_reason(written, reason):
    with pytest.raises(SuiteError, match=reason):
        suite_of(written)


def test_a_request_has_the_settings_of_the_suite_under_those_of_the_case(suite):
    made = request(suite, 0, seed=7)
    assert made.mode == execution_pb2.MODE_STRUCTURED
    assert (made.hints.max_tokens, made.hints.temperature, made.hints.seed) == (9, 0, 7)
    assert (made.prompt.text, made.output.schema_json) == ("Be brief.", '{"type":"object"}')
    assert made.context.collection == "docs"
    assert made.messages[0].content == "How many lamps are there?"
    assert (made.request_id, made.background, made.keep_request) == ("eval.e1.lamp", True, True)
    assert dict(made.metadata) == {"team": "a", "eval.id": "e1", "eval.case": "lamp"}
    assert made.hints.timeout.seconds == 120
    assert [message.role for message in request(suite, 1).messages] == [
        message_pb2.ROLE_USER,
        message_pb2.ROLE_ASSISTANT,
        message_pb2.ROLE_USER,
    ]


def test_json_texts_may_be_written_as_values():
    step = {"name": "find", "kind": "retrieve", "parameters_json": {"collection": "docs"}}
    fields = {"mode": "plan", "plan": {"steps": [step]}, "hints": {"options_json": '{"a": 1}'}}
    suite = suite_of({"cases": [{"input": "a", "expected": 1, "request": fields}], "scorers": ["exact"]})
    made = request(suite, 0)
    assert made.plan.steps[0].parameters_json == '{"collection":"docs"}'
    assert made.hints.options_json == '{"a": 1}'


def test_a_schema_keeps_fields_that_are_named_like_json_texts():
    fields = {"mode": "structured", "schema": {"properties": {"a_json": {"type": "string"}}}}
    suite = suite_of({"cases": [{"input": "a", "expected": 1, "request": fields}], "scorers": ["exact"]})
    assert request(suite, 0).output.schema_json == '{"properties":{"a_json":{"type":"string"}}}'


def test_the_model_of_the_command_wins_and_its_timeout_does_not():
    suite = suite_of(
        {
            "request": {"hints": {"model": "a", "timeout": "3s"}},
            "cases": [{"input": "a", "expected": "b"}],
            "scorers": ["exact"],
        }
    )
    made = request(suite, 0, model="b", timeout_s=9.0)
    assert (made.hints.model, made.hints.timeout.seconds) == ("b", 3)


def test_a_decision_neither_runs_in_the_background_nor_has_a_seed():
    questions = [{"instructions": "It is angry.", "predicate": {}}]
    suite = suite_of(
        {
            "request": {"mode": "decide", "decisions": {"questions": questions}},
            "cases": [{"input": "a", "expected": True}],
            "scorers": ["exact"],
        }
    )
    made = request(suite, 0, seed=1)
    assert (made.background, made.hints.HasField("seed")) == (False, False)


def test_the_examples_that_people_read_are_suites():
    (page,) = blocks((ROOT / "deploy" / "docs" / "evaluation.md").read_text(encoding="utf-8"), "yaml")
    for written in (parse_yaml(page), read_suite(ROOT / "deploy" / "examples" / "suite.yaml")):
        example = suite_of(written)
        for case in example.cases:
            assert request_of(example, case, Settings(), "e1").messages


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"mode": "chatt"}, "no SystemRequest: .*MODE_CHATT"),
        ({"hint": {}}, 'no field named "hint"'),
        ({"session_id": "s"}, "the evaluation sets 'session_id' itself"),
        ({"request_id": "s"}, "the evaluation sets 'request_id' itself"),
        ({"schema": {}, "output": 3}, "request.output is not a mapping"),
    ],
)
def test_a_wrong_request_is_refused_with_its_case(fields, reason):
    written = {"cases": [{"input": "a", "expected": 1, "request": fields}], "scorers": ["exact"]}
    with pytest.raises(SuiteError, match=f"case 'case-0001': .*{reason}"):
        request(suite_of(written), 0)


@given(st.text(alphabet="abcXYZ019._:-", min_size=1, max_size=45), st.text(alphabet="ab-", max_size=64))
def test_the_ids_of_requests_and_judges_are_ids(name, label):
    suite = suite_of({"cases": [{"name": name, "input": "a", "expected": 1}], "scorers": ["exact"]})
    made = request_of(suite, suite.cases[0], Settings(), "0123456789ab")
    assert is_id(f"{made.request_id}.{label}")


def test_files_of_cases_and_of_suites(tmp_path):
    (tmp_path / "my cases.jsonl").write_text('{"input": "a", "expected": "b"}\n\n{"input": "c", "expected": "d"}\n')
    cases = read_suite(tmp_path / "my cases.jsonl")
    assert (cases["name"], len(cases["cases"])) == ("my-cases", 2)
    (tmp_path / "suite.yaml").write_text("scorers: [exact]\ncases: my cases.jsonl\n")
    assert read_suite(tmp_path / "suite.yaml") == {"name": "suite", "scorers": ["exact"], "cases": cases["cases"]}
    (tmp_path / "suite.json").write_text('{"name": "own", "cases": []}')
    assert read_suite(tmp_path / "suite.json")["name"] == "own"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", b'{"input": "a"}\n{', "line 2 of .* is not JSON"),
        ("a.yaml", b"- a", "a suite is a mapping"),
        ("a.yaml", b"a: [", "a.yaml.*is not YAML"),
        ("a.json", b"{", "a.json.*line 1"),
        ("a.yaml", b"\xff", "it is not UTF-8 text"),
        ("a.yaml", b"cases: none.jsonl", "cannot read .*none.jsonl.*: no such file"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SuiteError, match=reason):
        read_suite(tmp_path / name)


def execution(**fields):
    sent = execution_pb2.SystemRequest(
        request_id="r" * 60,
        mode=execution_pb2.MODE_CHAT,
        messages=[message_pb2.Message(role=message_pb2.ROLE_USER, content="How many lamps?")],
        background=True,
        keep_request=True,
        metadata={"team": "a"},
    )
    sent.hints.seed = 3
    answered = execution_pb2.SystemResponse(content="12")
    answered.tool_calls_made.add(name="stock", arguments_json='{"id": 7}')
    values = {"request_id": "r" * 60, "request": sent, "response": answered, "metadata": {"team": "a"}, **fields}
    return execution_pb2.Execution(**values)


def test_a_recorded_execution_becomes_a_case_that_asks_and_expects_the_same():
    recorded = execution()
    case = case_of(recorded)
    suite = suite_of({"cases": [case], "scorers": ["exact", "trajectory"]})
    made = request(suite, 0)
    assert made.messages == recorded.request.messages
    assert made.hints.seed == 3
    assert suite.cases[0].expected == "12"
    assert suite.cases[0].tools[0].arguments == {"id": 7}
    assert json_format.MessageToDict(made)["metadata"].keys() == {"eval.id", "eval.case"}


def test_recorded_values_are_expected_as_values():
    structured = execution(response=execution_pb2.SystemResponse(content="x", structured_output_json='{"a": 1}'))
    assert case_of(structured)["expected"] == {"a": 1}
    decided = execution_pb2.SystemResponse()
    decided.decisions.add(predicate=decision_pb2.PredicateAnswer(probability=0.2))
    assert case_of(execution(response=decided))["expected"] is False


def test_executions_whose_request_is_not_whole_give_no_case():
    assert case_of(execution(request=None)) is None
    assert case_of(execution(session_id="s")) is None
    assert case_of(execution(metadata={"eval.id": "e"})) is None


def test_the_variant_of_the_command_wins_over_that_of_a_case_and_is_no_setting_without_one(suite):
    suite.cases[0].request["variant"] = {"experiment": "e", "variant": "long"}
    assert request(suite, 0).variant == execution_pb2.ExperimentVariant(experiment="e", variant="long")
    assert request(suite, 0, variant="e=short").variant.variant == "short"
    without = request(suite, 0, variant="none")
    assert without.without_experiments
    assert not without.HasField("variant")
    assert "variant" not in Settings().as_json()
    assert Settings(variant="e=short").as_json()["variant"] == "e=short"


@pytest.mark.parametrize("text", ["short", "e=", "=short"])
def test_a_variant_without_an_experiment_is_refused_with_the_form_that_is_wanted(suite, text):
    with pytest.raises(SuiteError, match=r"--variant is .*: write EXPERIMENT=VARIANT, or none"):
        request(suite, 0, variant=text)
