"""Experiments through the orchestrator: the variant is chosen once, is kept, and is seen in responses and metrics."""

from collections import Counter
from dataclasses import replace

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.calls.principal import Principal, PrincipalKind, Scope
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.call import call_unary
from pagantic_common.testing.spans import recording_spans
from services.orchestrator.adapters.access.cedar_policy import CedarPolicy
from services.orchestrator.adapters.operator_files import PromptFolder
from services.orchestrator.app.policy.permit import Permit
from services.orchestrator.core.admission.experiments import Experiment, Experiments, Variant
from services.orchestrator.wiring.access import Access
from tests.support import measured_variants
from tests.support.measured import run_measured
from tests.support.orchestrator_app import crash, ended, execute, orchestrator, system_request, timeline
from tests.support.scripted_services import ScriptedInference, scripted_services

MODELS = Experiment("models", (Variant("control", 75), Variant("large", 25, model="large", temperature=0.25)))
TURNED = Experiment("models", (Variant("control", 0), Variant("other", 100, model="other")))


def services_with(*experiments, inference=None, **fields):
    made = scripted_services(inference or ScriptedInference(), **fields)
    return replace(made, experiments=Experiments(experiments))


def named(variant, experiment="models"):
    return execution_pb2.ExperimentVariant(experiment=experiment, variant=variant)


async def variants_of_sessions(stub, count):
    given = {}
    for number in range(count):
        response = await execute(stub, system_request(session_id=f"session-{number}"))
        assert response.variant.experiment == "models"
        given[response.session_id] = response.variant.variant
    return given


async def test_sessions_keep_their_variant_over_a_restart_and_get_its_model(tmp_path):
    inference = ScriptedInference()
    async with orchestrator(tmp_path, services_with(MODELS, inference=inference)) as stub:
        before = await variants_of_sessions(stub, 40)
        hinted = Counter((hints.model, hints.temperature) for hints in inference.hinted)
    counts = Counter(before.values())
    assert hinted == {("", None): counts["control"], ("large", 0.25): counts["large"]}
    assert 20 <= counts["control"] <= 38
    async with orchestrator(tmp_path, services_with(MODELS)) as stub:
        assert await variants_of_sessions(stub, 40) == before


async def test_a_variant_has_its_prompt_and_the_timeline_and_the_span_name_it(tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    (folder / "support.txt").write_text("You help {{ name }} at length.")
    (folder / "brief.txt").write_text("You help {{ name }} in one sentence.")
    brief = Experiment("prompts", (Variant("control", 100), Variant("brief", 0, prompt="brief")), prompt="support")
    inference = ScriptedInference()
    template = execution_pb2.PromptTemplate(name="support", variables={"name": "Ana"})
    services = services_with(brief, inference=inference, prompts=PromptFolder(folder))
    with recording_spans() as spans:
        async with orchestrator(tmp_path, services) as stub:
            asked = system_request(
                request_id="r",
                prompt=execution_pb2.SystemPrompt(template=template),
                variant=named("brief", "prompts"),
            )
            response = await execute(stub, asked)
            events = await timeline(stub, "r")
    assert response.variant == named("brief", "prompts")
    assert inference.commands[0].messages[0].content == "You help Ana in one sentence."
    assert [event.variant_assigned for event in events if event.HasField("variant_assigned")] == [response.variant]
    attributes = spans.named("invoke_workflow chat").attributes
    assert attributes["pagantic.experiment.name"] == "prompts"
    assert attributes["pagantic.experiment.variant"] == "brief"


async def test_a_resumed_execution_keeps_its_variant_when_the_file_has_changed(tmp_path):
    stuck = ScriptedInference(None)
    request = system_request(request_id="r", variant=named("large"))
    left = await crash(tmp_path, services_with(MODELS, inference=stuck), request, stuck.waiting)
    inference = ScriptedInference()
    async with orchestrator(left, services_with(TURNED, inference=inference)) as stub:
        await call_unary("orchestrator", stub.ResumeExecution, pb.ResumeExecutionRequest(request_id="r"))
        response = (await ended(stub, "r")).response
        assert response.variant == named("large")
        assert inference.hinted[0].model == "large"
        assert await execute(stub, request) == response  # The request joins it, although the file lacks its variant.
        names = [event.action for event in await timeline(stub, "r")]
        assert names.count("variant.assigned") == 1


async def test_a_replay_has_the_recorded_variant_but_for_what_its_caller_changes(tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    for name in ("support", "brief"):
        (folder / f"{name}.txt").write_text(f"{name}: greet {{{{ session.name }}}}.")
    brief = Experiment("prompts", (Variant("brief", 100, prompt="brief"), Variant("control", 0)), prompt="support")
    inference = ScriptedInference()
    services = services_with(brief, inference=inference, prompts=PromptFolder(folder))
    asked = system_request(session_id="talk", request_id="first", keep_request=True)
    asked.prompt.template.name = "support"
    async with orchestrator(tmp_path, services) as stub:
        values = pb.UpdateSessionRequest(session_id="talk", state_json={"name": '"Ana"'})
        await call_unary("orchestrator", stub.UpdateSession, values)
        given = (await execute(stub, asked)).variant
    async with orchestrator(tmp_path, services_with(TURNED, inference=inference, prompts=PromptFolder(folder))) as stub:
        again = execution_pb2.SystemRequest(replay=execution_pb2.Replay(request_id="first"))
        again.MergeFrom(asked)
        again.request_id, again.session_id = "again", ""
        response = await execute(stub, again)
        again.request_id, again.hints.model = "changed", "mine"
        changed = await execute(stub, again)
    assert response.variant == changed.variant == given == named("brief", "prompts")
    assert [command.messages[0].content for command in inference.commands] == ["brief: greet Ana."] * 3
    assert [hints.model for hints in inference.hinted] == ["", "", "mine"]


async def test_a_caller_opts_out_and_an_unknown_variant_is_refused_before_anything_is_executed(tmp_path):
    inference = ScriptedInference()
    async with orchestrator(tmp_path, services_with(MODELS, inference=inference)) as stub:
        response = await execute(stub, system_request(without_experiments=True))
        assert not response.HasField("variant")
        with pytest.raises(InvalidRequest, match=r"variant.variant 'huge' is not known: there is control, large"):
            await execute(stub, system_request(variant=named("huge")))
        with pytest.raises(InvalidRequest, match=r"variant names an experiment: leave without_experiments unset"):
            await execute(stub, system_request(variant=named("large"), without_experiments=True))
        assert len(inference.commands) == 1


class Acme:
    """Takes every caller for one of the tenant acme."""

    async def authenticate(self, credentials):
        return Principal("acme", credentials, PrincipalKind.API_KEY, frozenset(Scope))


async def test_a_policy_keeps_a_tenant_out_of_an_experiment_and_denies_it_the_variant_by_name(tmp_path):
    file = tmp_path / "policies.cedar"
    file.write_text(
        "permit(principal, action, resource);"
        '@id("no large") forbid(principal == Tenant::"acme", action, resource == Model::"large");'
    )
    policy = CedarPolicy(file)
    experiments = Experiments((replace(MODELS, variants=(Variant("large", 100, model="large"),)),))
    experiments = replace(experiments, may_use=Access(None, None, policy).may_use)
    services = replace(scripted_services(), around=(Permit(policy),), experiments=experiments)
    async with orchestrator(tmp_path, services, authenticator=Acme()) as stub:
        response = await call_unary("orchestrator", stub.Execute, system_request(), 10, credentials="ana")
        assert response.content == "hello"
        assert not response.HasField("variant")
        asked = system_request(variant=named("large"))
        response = await call_unary("orchestrator", stub.Execute, asked, 10, credentials="ana")
        assert response.error.code == error_pb2.ERROR_CODE_AUTH_POLICY
        assert response.variant == named("large")


def test_metrics_count_the_work_of_each_variant_but_not_of_requests_that_name_theirs():
    measured = run_measured(measured_variants, 40)
    control, broken = measured["given"]["control"], measured["given"]["broken"]
    assert control + broken == 40
    metrics = measured["metrics"]
    executions = {"models/control/": control, "models/broken/AUTH_POLICY": broken, "//": 2}
    assert metrics["pagantic_orchestrator_execution_duration"] == executions
    input_and_output = 2
    tokens = {"models/control/": input_and_output * control, "//": input_and_output * 2}
    assert metrics["gen_ai.client.token.usage"] == tokens
    assert metrics["pagantic_orchestrator_validation_duration"] == {"models/control/": control}
    assert metrics["pagantic_orchestrator_cost_usd"]["models/control/"] == pytest.approx(control * 13e-6)


async def test_a_replay_has_the_variant_that_it_names_and_is_not_drawn(tmp_path):
    inference = ScriptedInference()
    async with orchestrator(tmp_path, services_with(MODELS, inference=inference)) as stub:
        await execute(stub, system_request(request_id="r", keep_request=True, variant=named("large")))
        replay = execution_pb2.Replay(request_id="r", from_step="prepare")
        again = await execute(stub, system_request(keep_request=True, replay=replay, variant=named("large")))
        assert again.variant == named("large")
        without = await execute(stub, system_request(keep_request=True, replay=replay, without_experiments=True))
        assert not without.HasField("variant")
        of_none = execution_pb2.Replay(request_id=without.request_id)
        assert not (await execute(stub, system_request(replay=of_none))).HasField("variant")
    assert [hints.model for hints in inference.hinted] == ["large", "large", "", ""]
