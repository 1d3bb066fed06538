import json
import os
import time

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.constraint.v1 import constraint_service_pb2 as rpc
from pagantic.constraint.v1 import contract_pb2
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PaganticError
from pagantic_common.grammar.engine_text import check_engine_text
from pagantic_common.rpc.call import call_unary
from tests.support.constraint_app import running

SCHEMA = json.dumps({"type": "object", "properties": {"c": {"enum": ["red", "blue"]}}, "required": ["c"]})


@pytest.fixture
async def stub(tmp_path):
    (tmp_path / "yes-no.gbnf").write_text('root ::= "yes" | "no"\n')
    async with running(grammars_folder=tmp_path) as stub:
        yield stub


async def refusal(method, request) -> PaganticError:
    with pytest.raises(PaganticError) as caught:
        await call_unary("constraint", method, request)
    return caught.value


async def test_compiles_every_kind_of_source_and_caches(stub):
    requests = [
        rpc.CompileRequest(schema_json=SCHEMA),
        rpc.CompileRequest(grammar='root ::= "a"'),
        rpc.CompileRequest(grammar_name="yes-no"),
        rpc.CompileRequest(regex="a+"),
        rpc.CompileRequest(enum_list=rpc.EnumList(values=["a", "b"])),
    ]
    first = [await stub.Compile(request) for request in requests]
    second = [await stub.Compile(request) for request in requests]
    assert [response.cached for response in first + second] == [False] * 5 + [True] * 5
    assert [response.hash for response in first] == [response.hash for response in second]
    assert [check_engine_text(response.engine_text) for response in first] == [[]] * 5


SOURCES = ["The red hat is in the box.", "Noon."]


async def test_citations_are_compiled_and_checked_by_their_sources_alone(stub):
    bounds = contract_pb2.Citations(max_claims=2)
    compiled = await stub.Compile(rpc.CompileRequest(cited_sources=rpc.CitedSources(texts=SOURCES, citations=bounds)))
    assert check_engine_text(compiled.engine_text) == []
    assert not compiled.unsupported
    right, invented = (
        json.dumps({"in_sources": True, "claims": [{"text": "x", "source": 1, "quote": quote}]})
        for quote in ("red hat is", "red box is")
    )
    contract = contract_pb2.OutputContract(citations=bounds)
    asked = rpc.EnforceRequest(output=right, contract=contract, sources=SOURCES, decoder_enforced=True)
    response = await stub.Enforce(asked)
    assert (response.valid, response.guarantee) == (True, contract_pb2.GUARANTEE_ENFORCED)
    assert response.structured_output_json == right
    asked.output = invented
    response = await stub.Enforce(asked)
    assert (response.valid, response.guarantee) == (False, contract_pb2.GUARANTEE_PARTIAL)
    assert response.error.message == 'field "claims[0].quote": must be copied without any change from source 1'
    asked.output, asked.contract.decoder_constraint = right, False
    assert (await stub.Enforce(asked)).guarantee == contract_pb2.GUARANTEE_VALIDATED


async def test_citations_that_cannot_be_compiled_are_refused_with_the_next_step(stub):
    long = rpc.CitedSources(texts=["word and word " * 6000])
    refused = await refusal(stub.Compile, rpc.CompileRequest(cited_sources=long))
    assert refused.code is ErrorCode.CONSTRAINT_TOO_COMPLEX
    assert "by a lower context.max_tokens or context.max_chunks" in str(refused)
    wide = rpc.CitedSources(citations=contract_pb2.Citations(max_quote_words=5))
    refused = await refusal(stub.Compile, rpc.CompileRequest(cited_sources=wide))
    assert "cited_sources.citations.max_quote_words is 5: it must be between 6 and 200" in str(refused)
    both = contract_pb2.OutputContract(schema_json="{}", citations=contract_pb2.Citations())
    refused = await refusal(stub.Enforce, rpc.EnforceRequest(output="{}", contract=both))
    assert "contract.citations stands alone" in str(refused)


async def test_compile_lists_what_decoding_cannot_enforce(stub):
    response = await stub.Compile(rpc.CompileRequest(schema_json='{"type": "array", "uniqueItems": true}'))
    assert [(found.keyword, found.path) for found in response.unsupported] == [("uniqueItems", "/uniqueItems")]


async def test_enforce_repairs_and_reports_each_stage(stub):
    contract = contract_pb2.OutputContract(schema_json=SCHEMA)
    rule = contract_pb2.Rule(name="short", expression="size(output) < 50")
    response = await stub.Enforce(rpc.EnforceRequest(output='{"c": "RED"', contract=contract, rules=[rule]))
    assert response.valid
    assert response.structured_output_json == '{"c": "red"}'
    assert response.guarantee == contract_pb2.GUARANTEE_REPAIRED
    assert [report.stage for report in response.stages] == [1, 2, 3, 4, 5, 6]
    assert not response.HasField("error")


async def test_enforce_names_every_violation(stub):
    contract = contract_pb2.OutputContract(schema_json=SCHEMA)
    response = await stub.Enforce(rpc.EnforceRequest(output="{}", contract=contract))
    assert not response.valid
    assert response.guarantee == contract_pb2.GUARANTEE_PARTIAL
    assert response.error.code == error_pb2.ERROR_CODE_CONSTRAINT_SCHEMA_INVALID
    assert [found.message for found in response.stages[3].violations] == ['missing required field "c"']


async def test_enforce_checks_the_grammar(stub):
    contract = contract_pb2.OutputContract(grammar_name="yes-no")
    assert (await stub.Enforce(rpc.EnforceRequest(output="yes", contract=contract))).valid
    response = await stub.Enforce(rpc.EnforceRequest(output="maybe", contract=contract))
    assert response.error.code == error_pb2.ERROR_CODE_CONSTRAINT_GRAMMAR_REJECTED


async def test_each_stage_is_an_rpc(stub):
    grammar = await stub.ValidateGrammar(rpc.ValidateGrammarRequest(grammar='root ::= "a"\nb ::= "c"', text="a"))
    assert (grammar.valid, grammar.text_matches, len(grammar.warnings)) == (True, True, 1)
    wrong = await stub.ValidateGrammar(rpc.ValidateGrammarRequest(grammar="root ::= x", text="a"))
    assert (wrong.valid, wrong.HasField("text_matches"), wrong.problems[0].column) == (False, False, 10)
    checked = await stub.ValidateJson(rpc.ValidateJsonRequest(text='{"a": NaN}'))
    assert not checked.valid
    repaired = await stub.RepairJson(rpc.RepairJsonRequest(text="{'a': 1"))
    assert (repaired.text, repaired.valid, repaired.level) == ('{"a": 1}', True, 2)
    normalized = await stub.NormalizeEnums(rpc.NormalizeEnumsRequest(document_json='{"c":"RED"}', schema_json=SCHEMA))
    assert (normalized.document_json, list(normalized.changed_paths)) == ('{"c":"red"}', ["c"])
    assert (await stub.ValidateSchema(rpc.ValidateSchemaRequest(document_json="not json"))).valid
    schema = await stub.ValidateSchema(rpc.ValidateSchemaRequest(document_json="not json", schema_json=SCHEMA))
    assert schema.violations[0].code == error_pb2.ERROR_CODE_CONSTRAINT_JSON_INVALID
    rule = contract_pb2.Rule(name="r", builtin=contract_pb2.BuiltinRule(kind="not_empty"))
    assert not (await stub.ValidateRules(rpc.ValidateRulesRequest(output=" ", rules=[rule]))).valid


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (rpc.CompileRequest(), ErrorCode.CONFIG_INVALID),
        (rpc.CompileRequest(schema_json="{"), ErrorCode.CONFIG_INVALID),
        (rpc.CompileRequest(grammar="x"), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (rpc.CompileRequest(grammar_name="none"), ErrorCode.CONFIG_GRAMMAR_NOT_FOUND),
        (rpc.CompileRequest(regex="x" * 300_000), ErrorCode.CONSTRAINT_TOO_COMPLEX),
    ],
)
async def test_bad_source_is_the_callers_fault(stub, request_, code):
    error = await refusal(stub.Compile, request_)
    assert (type(error), error.code) == (InvalidRequest, code)


async def test_bad_rule_is_named(stub):
    request = rpc.ValidateRulesRequest(rules=[contract_pb2.Rule(name="mine", expression="(")])
    assert "'mine'" in str(await refusal(stub.ValidateRules, request))
    unset = rpc.ValidateRulesRequest(rules=[contract_pb2.Rule(name="bare")])
    assert "'bare'" in str(await refusal(stub.ValidateRules, unset))


async def test_output_beyond_the_limit_is_refused():
    async with running(max_output_bytes=10) as stub:
        error = await refusal(stub.RepairJson, rpc.RepairJsonRequest(text="é" * 6))
        assert error.code is ErrorCode.CONSTRAINT_TOO_COMPLEX
        assert "12 bytes, at most 10" in str(error)


async def test_a_dialect_that_is_not_known_is_a_warning_of_every_answer(stub):
    schema_json = '{"$schema": "http://example.com/mine", "type": "integer"}'
    warning = "$schema 'http://example.com/mine' is not known: the schema was read as draft 2020-12"
    contract = contract_pb2.OutputContract(schema_json=schema_json)
    answers = [
        await stub.Compile(rpc.CompileRequest(schema_json=schema_json)),
        await stub.Compile(rpc.CompileRequest(schema_json=schema_json)),
        await stub.Enforce(rpc.EnforceRequest(output="1", contract=contract)),
        await stub.ValidateSchema(rpc.ValidateSchemaRequest(document_json="1", schema_json=schema_json)),
    ]
    assert [[text[: len(warning)] for text in answer.warnings] for answer in answers] == [[warning]] * 4
    assert not (await stub.Compile(rpc.CompileRequest(schema_json=SCHEMA))).warnings


async def test_rules_are_checked_before_there_is_an_output(stub):
    good = contract_pb2.Rule(name="good", expression="value.c == 'red'")
    typo = contract_pb2.Rule(name="typo", expression="value.d == 'red'")
    closed = json.dumps({**json.loads(SCHEMA), "additionalProperties": False})
    await stub.CompileRules(rpc.CompileRulesRequest(rules=[good, typo], schema_json=SCHEMA))
    await stub.CompileRules(rpc.CompileRulesRequest(rules=[good], schema_json=closed))
    error = await refusal(stub.CompileRules, rpc.CompileRulesRequest(rules=[good, typo], schema_json=closed))
    assert isinstance(error, InvalidRequest)
    assert str(error) == "rule 'typo': the schema allows no field 'd' there: it declares 'c'"


async def test_a_number_that_no_enum_has_is_refused(stub):
    contract = contract_pb2.OutputContract(schema_json=SCHEMA, schema_in_prompt=99)
    error = await refusal(stub.Enforce, rpc.EnforceRequest(output="{}", contract=contract))
    assert isinstance(error, InvalidRequest)
    assert "schema_in_prompt 99" in str(error)


async def test_a_hostile_source_costs_a_worker_once_and_then_nothing(stub):
    bomb = json.dumps({"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"})
    was_told = False
    for _ in range(20):
        started_s = time.perf_counter()
        error = await refusal(stub.Compile, rpc.CompileRequest(schema_json=bomb))
        took_s = time.perf_counter() - started_s
        if error.code is ErrorCode.CONSTRAINT_TOO_COMPLEX and was_told:
            assert took_s < 0.2
            return
        was_told = error.code is ErrorCode.CONSTRAINT_TOO_COMPLEX  # a starved worker says something else
    pytest.fail("it was never told")


STRATEGIES = """
def breaks(output, violations):
    raise KeyError(f"no color in {output}")


def gives_a_color(output, violations):
    return '{"c": "blue"}'
"""


async def test_a_repair_strategy_that_fails_is_logged_once_with_its_error(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_repair_strategies.py").write_text(STRATEGIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    names = ("my_repair_strategies.breaks", "my_repair_strategies.gives_a_color")
    async with running(repair_strategies=names) as stub:
        for _ in range(3):
            request = rpc.EnforceRequest(output="no idea", contract=contract_pb2.OutputContract(schema_json=SCHEMA))
            assert (await stub.Enforce(request)).output == '{"c": "blue"}'
    (logged,) = [line for line in capsys.readouterr().out.splitlines() if "a repair strategy failed" in line]
    assert all(word in logged for word in ("breaks", "KeyError", "no color in no idea"))
