import json
from itertools import count

import pytest

from pagantic_common.domain.errors import ErrorCode
from pagantic_common.domain.validation import Guarantee, Stage, StageOutcome
from pagantic_common.grammar.engine_text import engine_text_of_gbnf
from services.constraint.core.model import Contract, Rule
from services.constraint.core.pipeline import Checks, Pipeline, StrategyFailure
from services.constraint.core.rules.compiled import compile_rules
from services.constraint.core.schema import validator_of

SCHEMA = {"type": "object", "properties": {"c": {"enum": ["red", "blue"]}}, "required": ["c"]}
P, R, F, S = "PASSED", "REPAIRED", "FAILED", "SKIPPED"


def enforce(output, schema=SCHEMA, **fields):
    return pipeline(output, schema, **fields).run()


def pipeline(output, schema=SCHEMA, *, rules=(), enforced=False, grammar_text="", repairs=(), **switches):
    ticks = count()
    return Pipeline(
        output,
        Contract(schema_json=json.dumps(schema), **switches),
        Checks(
            compile_rules(rules),
            schema,
            None if schema is None else validator_of(schema),
            grammar_text and engine_text_of_gbnf(grammar_text),
        ),
        is_decoder_enforced=enforced,
        monotonic_s=lambda: float(next(ticks)),
        repairs=repairs,
    )


def outcomes(found):
    return [report.outcome.value for report in found.stages]


def test_valid_output_passes_and_is_validated():
    found = enforce('{"c": "red"}')
    assert found.valid
    assert found.guarantee is Guarantee.VALIDATED
    assert outcomes(found) == [S, P, P, P, S, S]
    assert found.stages[0].reasons == (
        "the output was not decoded under all of this schema: the stages below check it",
    )
    assert found.structured_output_json == '{"c": "red"}'


def test_what_the_decoder_enforced_is_enforced_only_unchanged_and_checked():
    assert enforce('{"c": "red"}', enforced=True).guarantee is Guarantee.ENFORCED
    assert enforce('{"c": "red"', enforced=True).guarantee is Guarantee.REPAIRED
    assert enforce('{"c": "x"}', enforced=True).guarantee is Guarantee.PARTIAL
    assert enforce('{"c": "red"}', enforced=True, decoder_constraint=False).guarantee is Guarantee.VALIDATED


def test_repaired_and_normalized_output_is_returned():
    found = enforce('{"c": "RED"')
    assert (found.output, found.structured_output_json) == ('{"c": "red"}', '{"c": "red"}')
    assert found.guarantee is Guarantee.REPAIRED
    assert outcomes(found) == [S, R, R, P, S, S]


def test_text_without_json_fails_in_repair_and_ends_the_pipeline():
    found = enforce("no idea", rules=(Rule("r", kind="not_empty"),))
    assert not found.valid
    assert found.guarantee is Guarantee.PARTIAL
    assert found.failure.code is ErrorCode.CONSTRAINT_JSON_INVALID
    assert outcomes(found) == [S, F, S, S, S, S]
    assert found.stages[-1].reasons == ("an earlier stage failed",)
    assert found.structured_output_json == ""


def test_repair_that_is_not_allowed_skips_its_stage_only():
    found = enforce('{"c": "red"', repair_allowed=False)
    assert outcomes(found) == [S, S, P, F, S, S]
    assert found.failure.code is ErrorCode.CONSTRAINT_JSON_INVALID


def test_failure_carries_every_violation():
    found = enforce('{"c": "x"}', {**SCHEMA, "required": ["c", "d"]})
    assert found.failure.code is ErrorCode.CONSTRAINT_SCHEMA_INVALID
    assert found.failure.message == 'missing required field "d" (and 1 more)'
    assert found.failure.details["violations"][1] == {"path": "c", "message": 'field "c": must be one of [red blue]'}
    assert found.failure.retryable


def test_failure_of_enums_alone_says_so():
    assert enforce('{"c": "x"}').failure.code is ErrorCode.CONSTRAINT_ENUM_UNRECOGNIZED


def test_failed_rule_leaves_the_guarantee():
    found = enforce('{"c": "red"}', rules=(Rule("r", kind="contains", parameters_json='{"text": "zz"}'),))
    assert not found.valid
    assert found.guarantee is Guarantee.VALIDATED
    assert found.failure.code is ErrorCode.VALIDATION_RULE_FAILED


def test_grammar_is_checked_after_decoding():
    assert outcomes(enforce("x", None, grammar_text='root ::= "x"')) == [P, S, S, S, S, S]
    found = enforce("x", None, grammar_text='root ::= "y"')
    assert outcomes(found) == [F, S, S, S, S, S]
    assert found.failure.code is ErrorCode.CONSTRAINT_GRAMMAR_REJECTED
    assert found.guarantee is Guarantee.UNSPECIFIED


@pytest.mark.parametrize("schema", [{}, True])
def test_schema_that_allows_anything_still_asks_for_json(schema):
    assert outcomes(enforce("[1]", schema)) == [S, P, P, S, S, S]
    assert enforce("nope", schema).failure.code is ErrorCode.CONSTRAINT_JSON_INVALID


def test_without_contract_everything_is_skipped():
    found = enforce("anything", None)
    assert found.valid
    assert outcomes(found) == [S] * 6
    assert [report.stage for report in found.stages] == list(Stage)


def test_stages_are_timed_by_the_clock_that_was_given():
    assert [report.duration_s for report in enforce("{}").stages] == [1.0] * 6
    assert all(report.outcome is StageOutcome.SKIPPED for report in enforce("{}", None).stages)


def test_a_valid_output_is_never_changed_by_an_enum_that_may_not_apply():
    conditional = {
        "properties": {"c": {"pattern": "^[A-Z]+$"}},
        "if": {"properties": {"t": {"const": "y"}}},
        "then": {"properties": {"c": {"enum": ["red"]}}},
    }
    found = enforce('{"t": "x", "c": "RED"}', conditional)
    assert (found.valid, found.output, found.guarantee) == (True, '{"t": "x", "c": "RED"}', Guarantee.VALIDATED)
    worse = {**conditional, "required": ["d"]}
    assert enforce('{"t": "x", "c": "RED"}', worse).output == '{"t": "x", "c": "RED"}'
    either = {"properties": {"c": {"anyOf": [{"const": "RED"}, {"enum": ["red"]}]}}}
    assert enforce('{"c": "RED"}', either).output == '{"c": "RED"}'
    assert enforce('{"c": "Red"}', {"properties": {"c": {"const": "red"}}}).output == '{"c": "red"}'


def test_a_key_that_is_written_twice_is_repaired_and_the_last_value_counts():
    found = enforce('{"c": "red", "n": 1.50, "c": "blue"}')
    assert found.output == found.structured_output_json == '{"n": 1.50, "c": "blue"}'
    assert (found.valid, found.guarantee) == (True, Guarantee.REPAIRED)
    assert outcomes(found) == [S, R, P, P, S, S]
    assert found.stages[1].reasons == ('the key "c" was written more than once: the last value counts',)


def test_a_cut_output_with_a_repeated_key_says_both():
    found = enforce('{"c": "red", "c": "blue"')
    assert found.output == '{"c": "blue"}'
    assert found.stages[1].reasons == (
        "closed 1 open container",
        'the key "c" was written more than once: the last value counts',
    )


def test_a_key_that_is_written_twice_is_a_failure_where_repair_is_not_allowed():
    found = enforce('{"c": "red", "c": "blue"}', repair_allowed=False)
    assert not found.valid
    assert 'has the key "c" more than once' in found.violations[0].message


def test_a_strategy_that_repeats_a_key_did_not_help():
    def repeat(_output, _violations):
        return '{"c": "red", "c": "red"}'

    found = enforce('{"c": "x"}', repairs=(repeat,))
    assert outcomes(found)[3] == F


def test_a_grammar_that_decodes_enforces_no_schema():
    found = enforce('{"c": "red"}', enforced=True, grammar_text="root ::= [^z]*", grammar="root ::= x")
    assert found.guarantee is Guarantee.VALIDATED


def test_many_repairs_are_told_of_in_short():
    found = enforce(json.dumps(["A"] * 1000), {"items": {"enum": ["a"]}})
    assert found.valid
    assert found.stages[2].reasons[-1] == "and 900 more"


def test_registered_strategies_repair_what_json_repair_does_not():
    def breaks(output, violations):
        raise ValueError(output, violations)

    def gives_nothing(_output, _violations):
        return None

    def adds_color(_output, violations):
        assert violations
        return '{"c": "blue"}'

    strategies = (breaks, gives_nothing, adds_color)
    for output in ("no idea", "{}"):
        found = enforce(output, repairs=strategies)
        assert (found.valid, found.output, found.guarantee) == (True, '{"c": "blue"}', Guarantee.REPAIRED)
        assert any("repaired by adds_color" in report.reasons for report in found.stages)
    assert not enforce("{}", repairs=strategies, repair_allowed=False).valid
    assert not enforce("{}", repairs=(breaks, gives_nothing)).valid


def test_the_first_failure_of_each_strategy_is_told():
    def breaks(_output, violations):
        raise ValueError("x" * 400 if violations[0].code is ErrorCode.CONSTRAINT_JSON_INVALID else "later")

    def gives_a_number(_output, _violations):
        return 7

    def gives_nothing(_output, _violations):
        return None

    def gives_the_same(output, _violations):
        return output

    work = pipeline("no idea", repairs=(breaks, gives_a_number, gives_nothing, gives_the_same))
    assert not work.run().valid
    assert list(work.strategy_failures.values()) == [
        StrategyFailure("breaks", "ValueError", "x" * 300),
        StrategyFailure("gives_a_number", "TypeError", "it returned int, not a text"),
    ]
    whole = pipeline('{"c": "red"}', repairs=(breaks,))
    assert whole.run().valid
    assert not whole.strategy_failures
