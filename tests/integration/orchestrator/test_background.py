"""Executions that go on without their callers, followed by others, and what is kept with them."""

import asyncio

import pytest

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import InvalidRequest, NotFound, PreconditionFailed
from pagantic_common.rpc.call import call_stream, call_unary
from services.orchestrator.app.running import following
from tests.support.orchestrator_app import crash, ended, execute, orchestrator, system_request
from tests.support.scripted_services import ScriptedInference, answer, scripted_services


class Halting(ScriptedInference):
    """Says two words, waits for a sign, and says two more."""

    def __init__(self):
        super().__init__()
        self.sign = asyncio.Event()
        self.calls = 0

    async def infer(self, command, hints):
        self.calls += 1
        async for part in super().infer(command, hints):
            yield part
            if getattr(part, "content", "") == "two ":
                self.waiting.set()
                await self.sign.wait()


WORDS = answer("one two three four")


@pytest.fixture
async def halting():
    inference = Halting()
    inference.outputs = [WORDS]
    return inference


def background(request_id="r", **fields):
    return system_request(request_id=request_id, background=True, **fields)


async def begin(stub, request):
    """Send a request, and leave once it is admitted."""
    stream = call_stream("orchestrator", stub.ExecuteStream, request, 5)
    await anext(stream)
    await stream.aclose()


async def follow(stub, request_id="r", after=0):
    request = pb.FollowExecutionRequest(request_id=request_id, after_sequence=after)
    return [event async for event in call_stream("orchestrator", stub.FollowExecution, request, 10)]


async def get(stub, request_id="r"):
    reply = await call_unary("orchestrator", stub.GetExecution, pb.GetExecutionRequest(request_id=request_id))
    return reply.execution


def text_of(events):
    return "".join(event.content_delta.text for event in events)


async def test_a_request_in_the_background_goes_on_when_its_caller_leaves(tmp_path, halting):
    async with orchestrator(tmp_path, scripted_services(inference=halting)) as stub:
        await begin(stub, background())
        await halting.waiting.wait()
        following = [asyncio.create_task(follow(stub)) for _ in range(3)]
        await asyncio.sleep(0.1)
        halting.sign.set()
        for events in await asyncio.gather(*following):
            assert text_of(events) == WORDS.content, "also what had streamed before"
            assert events[-1].completed.response.content == WORDS.content
        assert halting.calls == 1


async def test_who_follows_may_leave_and_come_back_for_what_came_after(tmp_path, halting):
    async with orchestrator(tmp_path, scripted_services(inference=halting)) as stub:
        await begin(stub, background())
        await halting.waiting.wait()
        request = pb.FollowExecutionRequest(request_id="r")
        seen = []
        stream = call_stream("orchestrator", stub.FollowExecution, request, 10)
        while not text_of(seen).endswith("two "):
            seen.append(await anext(stream))
        await stream.aclose()
        halting.sign.set()
        await ended(stub, "r")
        last = seen[-1].sequence
        rest = await follow(stub, after=last)
        stored = [event.sequence for event in seen if not event.HasField("content_delta")]
        stored += [event.sequence for event in rest if not event.HasField("content_delta")]
        assert stored == list(range(1, len(stored) + 1))
        assert await follow(stub, after=rest[-1].sequence) == []


async def test_following_what_is_not_in_the_background_keeps_nobody_from_cancelling_it(tmp_path, halting):
    async with orchestrator(tmp_path, scripted_services(inference=halting)) as stub:
        stream = call_stream("orchestrator", stub.ExecuteStream, system_request(request_id="r"), 5)
        await anext(stream)
        await halting.waiting.wait()
        following = asyncio.create_task(follow(stub))
        await asyncio.sleep(0.05)
        await stream.aclose()
        assert (await following)[-1].completed.response.error.code


async def test_the_deadline_of_a_caller_does_not_bind_the_background_but_its_timeout_does(tmp_path, halting):
    async with orchestrator(tmp_path, scripted_services(inference=halting)) as stub:
        request = background()
        request.hints.timeout.FromMilliseconds(300)
        await begin(stub, request)
        events = await follow(stub)
        assert events[-1].completed.response.error.code == error_pb2.ERROR_CODE_CANCELLED_TIMEOUT
        assert (await get(stub)).state.current == execution_pb2.LIFECYCLE_STATE_CANCELLED


async def test_a_request_in_the_background_is_cancelled_by_name(tmp_path, halting):
    async with orchestrator(tmp_path, scripted_services(inference=halting)) as stub:
        await begin(stub, background())
        await halting.waiting.wait()
        reply = await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="r"))
        assert reply.state == execution_pb2.LIFECYCLE_STATE_CANCELLED


async def test_a_dead_orchestrators_background_is_taken_up_without_being_asked(tmp_path):
    inference = ScriptedInference(None)
    left = await crash(tmp_path, scripted_services(inference=inference), background(), inference.waiting)
    presence = {"resumes_plans": False, "beat_s": 0.02}
    async with orchestrator(left, presence=presence) as stub:
        await ended(stub, "r")
        assert (await get(stub)).response.content == "hello"


async def test_following_resumes_what_was_interrupted(tmp_path):
    inference = ScriptedInference(None)
    left = await crash(
        tmp_path, scripted_services(inference=inference), system_request(request_id="r"), inference.waiting
    )
    async with orchestrator(left) as stub:
        assert (await follow(stub))[-1].completed.response.content == "hello"


async def test_a_kept_request_is_given_back_with_its_metadata(tmp_path):
    async with orchestrator(tmp_path) as stub:
        request = system_request(request_id="r", keep_request=True, metadata={"kind": "test"})
        await execute(stub, request)
        found = await get(stub)
        again = execution_pb2.SystemRequest()
        again.CopyFrom(request)
        again.metadata["kind"] = "other"
        assert (await execute(stub, again)).content == "hello"
        request.ClearField("metadata")
        assert (found.request, dict(found.metadata)) == (request, {"kind": "test"})
        change = pb.UpdateExecutionRequest(request_id="r", metadata={"more": "1"}, removed_keys=["kind"])
        changed = await call_unary("orchestrator", stub.UpdateExecution, change)
        assert dict(changed.execution.metadata) == {"more": "1"} == dict((await get(stub)).metadata)
        await execute(stub, system_request(request_id="plain"))
        assert not (await get(stub, "plain")).HasField("request")
        listing = pb.ListExecutionsRequest(metadata={"more": "1"})
        listed = await call_unary("orchestrator", stub.ListExecutions, listing)
        assert [(one.request_id, dict(one.metadata)) for one in listed.executions] == [("r", {"more": "1"})]
        assert not listed.executions[0].HasField("request")
        await call_unary("orchestrator", stub.DeleteExecution, pb.DeleteExecutionRequest(request_id="r"))
        with pytest.raises(NotFound):
            await get(stub)


async def test_what_runs_is_not_deleted(tmp_path, halting):
    async with orchestrator(tmp_path, scripted_services(inference=halting)) as stub:
        await begin(stub, background())
        await halting.waiting.wait()
        with pytest.raises(PreconditionFailed, match="cancel it first"):
            await call_unary("orchestrator", stub.DeleteExecution, pb.DeleteExecutionRequest(request_id="r"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"metadata": {"a": "b"}}, "set keep_request"),
        ({"metadata": {"a b": "c"}, "keep_request": True}, "metadata key"),
        ({"metadata": {str(n): "" for n in range(65)}, "keep_request": True}, "at most 64"),
    ],
)
async def test_metadata_that_cannot_be_kept_is_refused(tmp_path, fields, said):
    async with orchestrator(tmp_path) as stub:
        with pytest.raises(InvalidRequest, match=said):
            await execute(stub, system_request(**fields))


async def test_messages_are_appended_to_a_conversation(tmp_path):
    async with orchestrator(tmp_path) as stub:
        said = system_request("earlier").messages
        update = pb.UpdateSessionRequest(session_id="s", appended_messages=said)
        assert (await call_unary("orchestrator", stub.UpdateSession, update)).session.message_count == 1
        await execute(stub, system_request("now", session_id="s"))
        reply = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))
        assert [message.content for message in reply.session.messages] == ["earlier", "now", "hello"]
        update = pb.UpdateSessionRequest(session_id="s", appended_messages=list(said) * 101)
        with pytest.raises(InvalidRequest, match="at most 100"):
            await call_unary("orchestrator", stub.UpdateSession, update)


async def change(stub, **fields):
    update = pb.UpdateSessionRequest(session_id="s", **fields)
    return (await call_unary("orchestrator", stub.UpdateSession, update)).session


async def said_in(stub):
    reply = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))
    return list(reply.session.messages)


async def test_a_message_that_no_turn_could_read_is_refused_when_it_is_added(tmp_path):
    user, assistant = message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT
    wrong = [
        (message_pb2.Message(role=user, content="hi", name="x"), "must not carry name"),
        (message_pb2.Message(role=user, removed=True), "must not carry removed"),
        (
            message_pb2.Message(role=assistant, tool_calls=[message_pb2.ToolCall(id="\n", name="clock")]),
            r"tool_calls\[0\].id '\\n' must have",
        ),
    ]
    async with orchestrator(tmp_path) as stub:
        for message, said in wrong:
            with pytest.raises(InvalidRequest, match=rf"appended_messages\[1\] .*{said}"):
                await change(stub, appended_messages=[message_pb2.Message(role=user, content="a"), message])
        with pytest.raises(NotFound):
            await said_in(stub)


async def test_messages_are_replaced_and_removed_and_the_next_turn_is_without_them(tmp_path):
    inference = ScriptedInference()
    inference.outputs = [answer("hello")]
    user, assistant = message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT
    call = message_pb2.ToolCall(id="toolu_a/b", name="clock", arguments_json="{}")
    result = message_pb2.Message(role=message_pb2.ROLE_TOOL, tool_call_id=call.id, name="clock", content="noon")
    stored = [
        message_pb2.Message(role=user, content="wrong"),
        message_pb2.Message(role=assistant),
        message_pb2.Message(role=assistant, content="right", tool_calls=[call]),
        result,
    ]
    async with orchestrator(tmp_path, scripted_services(inference)) as stub:
        await change(stub, appended_messages=stored)
        new = message_pb2.Message(role=user, content="new")
        changed = await change(stub, replaced_messages={0: new}, appended_messages=[new])
        assert changed.message_count == 5
        await execute(stub, system_request("now", session_id="s"))
        assert [message.content for message in inference.commands[0].messages] == ["new", "right", "noon", "new", "now"]
        without = message_pb2.Message(role=assistant, content="right")
        gone = message_pb2.Message(role=user, removed=True)
        await change(stub, replaced_messages={2: without, 4: gone})
        await execute(stub, system_request("again", session_id="s"))
        shown = ["new", "right", "now", "hello", "again"]
        assert [message.content for message in inference.commands[1].messages] == shown
        messages = await said_in(stub)
        assert messages[:5] == [new, stored[1], without, result, gone]
        assert len(messages) == 9


@pytest.mark.parametrize(
    ("replaced", "said"),
    [
        ({1: message_pb2.Message(role=message_pb2.ROLE_USER)}, "has no message at position 1"),
        ({-1: message_pb2.Message(role=message_pb2.ROLE_USER)}, "has no message at position -1"),
        ({0: message_pb2.Message(role=message_pb2.ROLE_USER, content="a", removed=True)}, "must carry its role alone"),
        ({0: message_pb2.Message(role=message_pb2.ROLE_USER, name="a")}, r"replaced_messages\[0\] .*name"),
        ({n: message_pb2.Message(role=message_pb2.ROLE_USER) for n in range(101)}, "at most 100"),
    ],
)
async def test_a_message_that_cannot_be_replaced_is_refused_and_nothing_changes(tmp_path, replaced, said):
    async with orchestrator(tmp_path) as stub:
        before = await change(stub, appended_messages=[message_pb2.Message(role=message_pb2.ROLE_USER, content="hi")])
        with pytest.raises(InvalidRequest, match=said):
            await change(stub, replaced_messages=replaced, state_json={"a": "1"}, appended_messages=[])
        reply = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))
        assert (reply.session.message_count, reply.session.messages[0].content) == (before.message_count, "hi")
        assert not reply.session.state_json


async def test_a_stored_execution_is_given_without_waiting_between_its_parts(tmp_path, monkeypatch):
    async def never(*_):
        raise AssertionError("nothing changes any more")

    monkeypatch.setattr(following, "FOLLOWED_AT_ONCE", 1)
    async with orchestrator(tmp_path) as stub:
        await execute(stub, system_request(request_id="r", keep_request=True))
        monkeypatch.setattr("services.orchestrator.adapters.journal.changes.hub._Watch.wait", never)
        events = await follow(stub)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert events[-1].HasField("completed")
