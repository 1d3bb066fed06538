import pytest

from pagantic.constraint.v1 import constraint_service_pb2 as pb
from pagantic.constraint.v1 import contract_pb2
from pagantic_common.domain.errors import InvalidRequest
from services.constraint.convert import contract_from_proto, rules_from_proto, source_from_proto
from services.constraint.core.compilation import SourceKind
from services.constraint.core.rules.compiled import compile_rules


def test_a_request_without_a_source_decodes_to_none():
    assert source_from_proto(pb.CompileRequest()) is None


def test_a_named_grammar_decodes_to_its_name():
    source = source_from_proto(pb.CompileRequest(grammar_name="list"))
    assert (source.kind, source.text) == (SourceKind.NAMED_GRAMMAR, "list")


def test_values_decode_to_a_json_array():
    request = pb.CompileRequest(enum_list=pb.EnumList(values=["a", 'b"']))
    assert source_from_proto(request).text == '["a","b\\""]'


def test_switches_of_a_contract_are_on_unless_they_are_set():
    assert contract_from_proto(contract_pb2.OutputContract()).repair_allowed
    assert not contract_from_proto(contract_pb2.OutputContract(repair_allowed=False)).repair_allowed
    assert not contract_from_proto(contract_pb2.OutputContract(decoder_constraint=False)).decoder_constraint


def test_an_empty_grammar_is_a_grammar():
    contract = contract_from_proto(contract_pb2.OutputContract(grammar=""))
    assert contract.has_grammar
    assert not contract_from_proto(contract_pb2.OutputContract()).has_grammar


def test_a_contract_of_a_newer_version_decodes_and_is_refused_by_its_check():
    contract = contract_from_proto(contract_pb2.OutputContract(schema_in_prompt=99))
    with pytest.raises(InvalidRequest, match=r"contract\.schema_in_prompt 99 is not known"):
        contract.check()


def test_a_rule_without_a_condition_decodes_and_is_refused_when_it_is_compiled():
    rules = rules_from_proto([contract_pb2.Rule(name="mine")])
    with pytest.raises(InvalidRequest, match="rule 'mine': no condition is given"):
        compile_rules(rules)
