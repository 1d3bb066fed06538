"""What the constraint service says of a contract before and beside its outputs reaches the caller."""

from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic_common.domain.errors import InvalidRequest
from tests.support.orchestrator_app import execute, orchestrator, system_request
from tests.support.scripted_services import ScriptedConstraint, ScriptedInference, answer, scripted_services


async def test_a_rule_that_cannot_hold_is_refused_before_the_first_inference(tmp_path):
    constraint, inference = ScriptedConstraint(), ScriptedInference(answer("{}"))
    constraint.failure = InvalidRequest("rule 'r': the expression does not compile")
    services = scripted_services(constraint=constraint, inference=inference)
    rule = contract_pb2.Rule(name="r", expression="value.")
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request(request_id="r1", rules=[rule]))
    assert response.error.message == "rule 'r': the expression does not compile"
    assert inference.commands == []


OUTPUT = contract_pb2.OutputContract(schema_json='{"type":"object"}')


async def test_what_is_to_be_known_of_a_contract_is_a_warning_of_the_response(tmp_path):
    constraint = ScriptedConstraint()
    constraint.warnings = ("$schema 'x' is not known",)
    async with orchestrator(tmp_path, scripted_services(constraint=constraint)) as stub:
        response = await execute(stub, system_request(mode=execution_pb2.MODE_STRUCTURED, output=OUTPUT))
    assert list(response.validation.warnings) == ["$schema 'x' is not known"]


async def test_keywords_that_the_decoder_does_not_enforce_are_named_in_a_warning(tmp_path):
    constraint = ScriptedConstraint()
    constraint.unsupported = ("uniqueItems at /properties/tags", "not")
    plan = plan_pb2.ExecutionPlan(steps=[plan_pb2.Step(name="a", kind="infer", output=OUTPUT)])
    async with orchestrator(tmp_path, scripted_services(constraint=constraint)) as stub:
        structured = await execute(stub, system_request(mode=execution_pb2.MODE_STRUCTURED, output=OUTPUT))
        planned = await execute(stub, system_request(mode=execution_pb2.MODE_PLAN, plan=plan))
        constraint.unsupported = tuple(f"k{number}" for number in range(11))
        many = await execute(stub, system_request(mode=execution_pb2.MODE_STRUCTURED, output=OUTPUT))
    for warnings in (structured.warnings, planned.warnings, planned.step_results[0].warnings):
        (warning,) = warnings
        assert warning.code == "schema_not_enforced"
        assert warning.message.endswith("checked after decoding: uniqueItems at /properties/tags; not")
    assert many.warnings[0].message.endswith("k7; and 3 more")
