"""System prompts made of templates, over a real socket."""

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import Message, Role
from pagantic_common.rpc.call import call_unary
from pagantic_common.settings import load_settings
from services.orchestrator.__main__ import open_app
from services.orchestrator.adapters.operator_files import PromptFolder
from services.orchestrator.settings import OrchestratorSettings
from tests.support.orchestrator_app import execute, journal_url, orchestrator, system_request, timeline
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

SYSTEM = Message(Role.SYSTEM, "Teach logic briefly.")


@pytest.fixture
def prompts(tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    folder.joinpath("tutor.txt").write_text("Teach {{ subject }} briefly.\n")
    return folder


def template(name="tutor", **variables):
    return execution_pb2.SystemPrompt(template=execution_pb2.PromptTemplate(name=name, variables=variables))


CHAT = {"mode": execution_pb2.MODE_CHAT}
STRUCTURED = {"mode": execution_pb2.MODE_STRUCTURED, "output": contract_pb2.OutputContract(schema_json="{}")}
VOTE = STRUCTURED | {"mode": execution_pb2.MODE_REDUNDANT}
STEPS = [plan_pb2.Step(name=name, kind="infer") for name in ("one", "two")]
PLAN = {"mode": execution_pb2.MODE_PLAN, "plan": plan_pb2.ExecutionPlan(steps=STEPS)}


@pytest.mark.parametrize("fields", [CHAT, STRUCTURED, VOTE, PLAN], ids=["chat", "structured", "vote", "plan"])
async def test_a_template_is_the_system_prompt_of_every_inference_in_every_mode(tmp_path, prompts, fields):
    inference = ScriptedInference(answer("{}"))
    services = scripted_services(inference=inference, prompts=PromptFolder(prompts))
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request(prompt=template(subject="logic"), **fields))
    assert not response.HasField("error")
    assert {command.messages[0] for command in inference.commands} == {SYSTEM}


@pytest.mark.parametrize("fields", [CHAT, PLAN], ids=["chat", "plan"])
@pytest.mark.parametrize(
    ("prompt", "wrong"),
    [
        (template("tutr", subject="x"), "no template is named 'tutr'; configured: tutor"),
        (template(), "variable 'subject' is missing"),
        (template(subject="x", tone="y"), "variable 'tone' is not one of its variables: subject"),
    ],
)
async def test_a_template_that_does_not_fit_is_found_in_prepare_and_named(tmp_path, prompts, prompt, wrong, fields):
    inference = ScriptedInference()
    services = scripted_services(inference=inference, prompts=PromptFolder(prompts))
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request(request_id="r", prompt=prompt, **fields))
        events = await timeline(stub, "r")
    assert response.error.code == error_pb2.ERROR_CODE_CONFIG_INVALID
    assert wrong in response.error.message
    assert events[-2].transition.from_state == execution_pb2.LIFECYCLE_STATE_PREPARE
    assert not inference.commands


async def test_a_template_name_that_is_a_path_is_a_malformed_envelope(tmp_path, prompts):
    async with orchestrator(tmp_path, scripted_services(prompts=PromptFolder(prompts))) as stub:
        for name in ("../tutor", "tutor/../tutor", ""):
            with pytest.raises(InvalidRequest, match=r"prompt\.template\.name"):
                await execute(stub, system_request(prompt=template(name, subject="x")))


async def test_a_provider_of_its_own_is_asked_once_and_its_prompt_is_the_steps_too(tmp_path):
    class Company:
        """Puts the house's rules first."""

        def __init__(self):
            self.requests = []

        async def system_prompt(self, request, session):
            self.requests.append(request)
            return f"House rules.\n\n{request.prompt.render()}"

    inference, provider = ScriptedInference(), Company()
    services = scripted_services(inference=inference, prompts=provider)
    async with orchestrator(tmp_path, services) as stub:
        await execute(stub, system_request(prompt=execution_pb2.SystemPrompt(text="Be kind."), **PLAN))
    assert [command.messages[0].content for command in inference.commands] == ["House rules.\n\nBe kind."] * 2
    assert len(provider.requests) == 1


async def test_the_setting_names_the_folder_and_a_file_that_is_no_template_stops_the_start(
    tmp_path, prompts, monkeypatch
):
    monkeypatch.setenv("PAGANTIC_ORCHESTRATOR_JOURNAL_URL", journal_url(tmp_path))
    monkeypatch.setenv("PAGANTIC_ORCHESTRATOR_PROMPT_FOLDER", "")
    assert load_settings(OrchestratorSettings).prompt_folder is None
    monkeypatch.setenv("PAGANTIC_ORCHESTRATOR_PROMPT_FOLDER", str(prompts))
    async with open_app(load_settings(OrchestratorSettings)) as registrations:
        assert len(registrations) == 2
    prompts.joinpath("broken.md").write_text("Hello {{ name")
    with pytest.raises(InvalidRequest, match=r"'broken\.md' cannot be used: line 1"):
        async with open_app(load_settings(OrchestratorSettings)):
            pass


async def test_a_template_reads_the_state_of_its_conversation(tmp_path, prompts):
    prompts.joinpath("greet.md").write_text("Greet {{ session.name }}.")
    inference = ScriptedInference()
    services = scripted_services(inference=inference, prompts=PromptFolder(prompts))
    async with orchestrator(tmp_path, services) as stub:
        asked = pb.UpdateSessionRequest(session_id="s", state_json={"name": '"Ada"'})
        await call_unary("orchestrator", stub.UpdateSession, asked)
        await execute(stub, system_request(session_id="s", prompt=template("greet")))
        assert inference.commands[0].messages[0].content == "Greet Ada."
        for fields in ({}, {"session_id": "another"}):
            response = await execute(stub, system_request(prompt=template("greet"), **fields))
            assert response.error.code == error_pb2.ERROR_CODE_CONFIG_INVALID
            assert "the session has no value 'name'" in response.error.message


async def test_templates_are_listed_with_what_they_take(tmp_path, prompts):
    prompts.joinpath("host.md").write_text("Greet {{ session.name }} in {{ place }}.")
    async with orchestrator(tmp_path, scripted_services(prompts=PromptFolder(prompts))) as stub:
        listed = (await stub.ListPromptTemplates(pb.ListPromptTemplatesRequest())).templates
    assert [(one.name, list(one.variables), list(one.session_keys)) for one in listed] == [
        ("host", ["place"], ["name"]),
        ("tutor", ["subject"], []),
    ]


async def test_a_template_is_rendered_with_the_values_of_a_conversation(tmp_path, prompts):
    prompts.joinpath("host.md").write_text("Greet {{ session.name }} in {{ place }}.")
    async with orchestrator(tmp_path, scripted_services(prompts=PromptFolder(prompts))) as stub:
        await stub.UpdateSession(pb.UpdateSessionRequest(session_id="house", state_json={"name": '"Ana"'}))
        rendered = await stub.RenderPromptTemplate(
            pb.RenderPromptTemplateRequest(template=template("host", place="Rome").template, session_id="house")
        )
    assert rendered.text == "Greet Ana in Rome."


@pytest.mark.parametrize(
    ("asked", "session_id", "words"),
    [
        (template("nothing"), "", "no template is named 'nothing'"),
        (template("tutor"), "", "variable 'subject' is missing"),
        (template("tutor", subject="x", colour="y"), "", "'colour' is not one of its variables"),
        (template("no name"), "", "template.name"),
        (template("tutor", subject="x"), "no id", "session_id"),
    ],
)
async def test_a_template_that_cannot_be_rendered_is_an_invalid_request(tmp_path, prompts, asked, session_id, words):
    request = pb.RenderPromptTemplateRequest(template=asked.template, session_id=session_id)
    async with orchestrator(tmp_path, scripted_services(prompts=PromptFolder(prompts))) as stub:
        with pytest.raises(InvalidRequest, match=words):
            await call_unary("orchestrator", stub.RenderPromptTemplate, request)
