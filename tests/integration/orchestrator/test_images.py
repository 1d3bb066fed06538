"""Images on their way to a model: through the journal, conversations, plans and retrieval."""

import pytest

from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client import predicate, user_message
from pagantic_common.client.requests import chat_request, decide_request, plan_request, plan_step
from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import Conflict, InvalidRequest
from pagantic_common.domain.images import MAX_IMAGES, file_of, split_content
from pagantic_common.rpc.call import call_unary
from tests.support.orchestrator_app import crash, execute, orchestrator, system_request
from tests.support.sample_images import GIF, sample_image
from tests.support.scripted_services import ScriptedContext, ScriptedInference, answer, scripted_services

ICON, BANNER = sample_image(), sample_image(GIF)


def shown(message):
    """Return what a model sees of a message: its texts, and the files of its images."""
    return [part if isinstance(part, str) else file_of(part) for part in split_content(message.content, message.images)]


def chat(*parts, **fields):
    return chat_request([user_message(*parts)], **fields)


async def test_a_conversation_keeps_its_images(tmp_path):
    inference = ScriptedInference(answer("one"), answer("two"))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await execute(stub, chat("What is ", ICON, "this?", session_id="s"))
        await execute(stub, system_request("And its color?", session_id="s"))
        reply = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))
    assert [shown(message) for message in inference.commands[-1].messages] == [
        ["What is ", ICON, "this?"],
        ["one"],
        ["And its color?"],
    ]
    kept = reply.session.messages[0]
    assert (kept.content, kept.parts[1].image.data) == ("What is this?", ICON)


async def test_a_resumed_execution_sees_the_images_of_its_request(tmp_path):
    request = chat("What is ", ICON, "this?", BANNER, request_id="r")
    waiting = ScriptedInference(None)
    left = await crash(tmp_path, scripted_services(inference=waiting), request, waiting.waiting)
    inference = ScriptedInference(answer("an icon"))
    async with orchestrator(left, scripted_services(inference=inference)) as stub:
        response = await execute(stub, request)
    assert response.content == "an icon"
    assert shown(inference.commands[-1].messages[0]) == ["What is ", ICON, "this?", BANNER]


async def test_the_same_request_with_another_image_is_another_request(tmp_path):
    async with orchestrator(tmp_path) as stub:
        await execute(stub, chat(ICON, "What?", request_id="r"))
        assert (await execute(stub, chat(ICON, "What?", request_id="r"))).content == "hello"
        with pytest.raises(Conflict):
            await execute(stub, chat(BANNER, "What?", request_id="r"))


async def test_retrieved_context_comes_before_the_image_and_its_question(tmp_path):
    inference = ScriptedInference()
    context = ScriptedContext(Chunk("1", "A lighthouse.", "book", 1.0, "bm25"))
    async with orchestrator(tmp_path, scripted_services(inference=inference, context=context)) as stub:
        await execute(stub, chat("Is ", ICON, "in the book?", context="lighthouses"))
    *_, last = inference.commands[-1].messages
    before, image, after = shown(last)
    assert before.endswith("\n\nIs ")
    assert "A lighthouse." in before
    assert (image, after) == (ICON, "in the book?")


async def test_a_step_of_a_plan_sees_the_images_with_its_prompt(tmp_path):
    inference = ScriptedInference(answer("an icon"))
    request = plan_request([user_message(ICON, "Look.")], [plan_step("say", "infer", prompt="What is it?")])
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        response = await execute(stub, request)
    assert response.content == "an icon"
    assert shown(inference.commands[-1].messages[-1]) == [ICON, "Look.\n\nWhat is it?"]


@pytest.mark.parametrize(
    ("request_of", "wrong"),
    [
        (lambda: decide_request([user_message(ICON)], [predicate("It is red.")]), "mode DECIDE reads text alone"),
        (lambda: chat(*[ICON] * (MAX_IMAGES + 1)), f"have {MAX_IMAGES + 1} images, at most {MAX_IMAGES} are taken"),
    ],
)
async def test_images_that_no_model_would_see_are_refused_at_the_edge(tmp_path, request_of, wrong):
    inference = ScriptedInference()
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        with pytest.raises(InvalidRequest, match=wrong):
            await execute(stub, request_of())
    assert not inference.commands


async def test_a_file_that_is_no_image_is_refused_at_the_edge(tmp_path):
    request = execution_pb2.SystemRequest(mode=execution_pb2.MODE_CHAT, messages=[user_message(ICON)])
    request.messages[0].parts[0].image.data = b"hello"
    async with orchestrator(tmp_path) as stub:
        with pytest.raises(InvalidRequest, match="image 0 is no image/png: its data does not begin like one"):
            await execute(stub, request)
