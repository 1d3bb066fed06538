"""What a model sees of a stored conversation, over a real socket and a real journal."""

import itertools

import pytest
from structlog.testing import capture_logs

from pagantic.common.v1 import error_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import DeadlineExceeded, Unavailable
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolChoice
from pagantic_common.rpc.call import call_unary
from pagantic_common.settings import load_settings
from pagantic_common.testing.scripted_engine import ScriptedEngine
from pagantic_common.testing.server import serving
from services.inference.app.models import Models, ModelSpec
from services.orchestrator.adapters.inference.grpc_inference import GrpcInference
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.app.effects import preparing
from services.orchestrator.core.conversation.memory import Eviction, MemoryPolicy
from services.orchestrator.core.model.request import Hints
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.settings import OrchestratorSettings
from tests.support.inference_app import generation_over, registration_of, served
from tests.support.keys import session
from tests.support.orchestrator_app import execute, journal_url, orchestrator, system_request, timeline
from tests.support.scripted_services import ScriptedInference, ScriptedSummaries, answer, scripted_services

PROMPT = execution_pb2.SystemPrompt(text="Be brief.")
HINTS = execution_pb2.ExecutionHints(max_tokens=20)
WORDS = " ".join(["word"] * 20)
STRUCTURED = {"mode": execution_pb2.MODE_STRUCTURED, "output": contract_pb2.OutputContract(schema_json="{}")}
SUMMARY = "Summary of the conversation so far:\n\n```\n"


class Remembering(ScriptedInference):
    """Answers in twenty words, and sums up by the number of the summary; `failure` fails summaries."""

    def __init__(self, window=8192):
        super().__init__()
        self.window = window
        self.failure = None
        self.has_long_summaries = False
        self.summarized = []

    async def infer(self, command, hints):
        self.commands.append(command)
        said = answer(WORDS)
        if command.messages[0].content.startswith("You keep the memory"):
            self.summarized.append((command, hints))
            if self.failure is not None:
                raise self.failure
            words = hints.max_tokens if self.has_long_summaries else 1
            said = answer(" ".join(["sum"] * words + [str(len(self.summarized))]))
        yield said

    def seen(self):
        """Return the texts that the last answer was given to."""
        return [message.content for message in self.commands[-1].messages]


def questions(first, last):
    """Return the turns as they are seen: each question and its answer, the last without one."""
    texts = [text for number in range(first, last) for text in (f"question {number}", WORDS)]
    return [*texts, f"question {last}"]


def summarized(summary, texts):
    """The texts of a conversation whose first message has a summary before it."""
    first, *others = texts
    return [f"{SUMMARY}{summary}\n```\n\n{first}", *others]


async def talk(stub, first, last, **fields):
    fields = {"prompt": PROMPT, "hints": HINTS, "session_id": "s", **fields}
    for number in range(first, last + 1):
        response = await execute(stub, system_request(f"question {number}", **fields))
        assert not response.HasField("error"), response.error
    return response


async def stored(stub):
    reply = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))
    return [message.content for message in reply.session.messages]


async def test_a_conversation_that_fits_is_seen_whole_and_nobody_counts_it(tmp_path):
    inference = Remembering()
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await talk(stub, 1, 5)
    assert inference.seen() == ["Be brief.", *questions(1, 5)]
    assert not inference.counted


async def test_the_oldest_turns_go_when_the_window_is_full_and_the_stored_conversation_stays_whole(tmp_path):
    inference = Remembering(window=150)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await talk(stub, 1, 9)
        assert await stored(stub) == [*questions(1, 9), WORDS]
    seen = inference.seen()
    assert seen[0] == "Be brief."
    first = int(seen[1].removeprefix("question "))
    assert 1 < first < 9
    assert seen[1:] == questions(first, 9)
    messages, texts = inference.counted[-1]
    assert len(messages) == len(texts) + 2, "the prompt is counted with its system message and its new turn"
    for command in inference.commands:
        prompt = sum(len(message.content.split()) + 1 for message in command.messages)
        assert prompt + HINTS.max_tokens <= 150


async def test_the_prompt_begins_alike_for_several_turns_of_a_long_conversation_also_after_a_restart(tmp_path):
    prompts = []
    for first in (1, 16):
        journal, inference = SqlJournal(journal_url(tmp_path)), Remembering(window=250)
        services = scripted_services(inference=inference, summaries=journal)
        async with orchestrator(tmp_path, services, journal=journal) as stub:
            await talk(stub, first, first + 14)
        prompts += [[message.content for message in command.messages] for command in inference.commands]
    cold = [turn for turn in range(1, 30) if prompts[turn][: len(prompts[turn - 1])] != prompts[turn - 1]]
    gaps = [later - earlier for earlier, later in itertools.pairwise(cold)]
    assert len(gaps) >= 3
    assert min(gaps) >= 4, "a turn has 22 tokens, and the history 200"


@pytest.mark.parametrize("eviction", [Eviction.FIFO, Eviction.SUMMARIZE])
async def test_no_more_of_a_conversation_is_read_than_can_be_seen_and_it_begins_with_a_question(
    tmp_path, monkeypatch, eviction
):
    monkeypatch.setattr(preparing, "MAX_RECALLED_BYTES", 1000)  # some eight turns
    journal, inference = SqlJournal(journal_url(tmp_path)), Remembering(window=200)
    policy = MemoryPolicy(eviction=eviction)
    services = scripted_services(inference=inference, summaries=journal, memory=policy)
    read = []
    history = journal.history

    async def counted(session_id, max_bytes, **limits):
        read.append(await history(session_id, max_bytes, **limits))
        return read[-1]

    monkeypatch.setattr(journal, "history", counted)
    async with orchestrator(tmp_path, services, journal=journal) as stub:
        response = await talk(stub, 1, 30)
        assert await stored(stub) == [*questions(1, 30), WORDS]
    assert max(len(messages) for _, messages in read) <= 20
    assert read[-1][0] > 30
    seen = [text.splitlines()[-1] for text in inference.seen() if "question" in text]
    assert seen[-1] == "question 30"
    assert inference.seen()[1].endswith(seen[0])
    assert inference.seen()[1].startswith(SUMMARY) is (eviction is Eviction.SUMMARIZE)
    (warning,) = response.warnings
    assert warning.message.startswith(f"the oldest {2 * (int(seen[0].split()[1]) - 1)} of 58 stored messages")


async def test_no_more_messages_are_recalled_than_another_service_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "MAX_RECALLED_MESSAGES", 8)
    inference = Remembering()
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        response = await talk(stub, 1, 9)
        assert await stored(stub) == [*questions(1, 9), WORDS]
    assert inference.seen() == ["Be brief.", *questions(6, 9)], "the first turn that is read may be cut"
    (warning,) = response.warnings
    assert warning.message.startswith("the oldest 10 of 16 stored messages")


async def test_a_tool_call_goes_with_its_results(tmp_path):
    call = ToolCall("c", "clock", "{}")
    inference = ScriptedInference(answer("", [call]), answer(WORDS), answer("", [call]), answer(WORDS), answer("x"))
    services = scripted_services(inference=inference, memory=MemoryPolicy(max_messages=7))
    async with orchestrator(tmp_path, services) as stub:
        await talk(stub, 1, 3, prompt=None)
    roles = [message.role for message in inference.commands[-1].messages]
    assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT, Role.USER]


async def test_limits_by_number_and_by_tokens_bind_what_is_seen_of_the_history(tmp_path):
    for policy, kept in ((MemoryPolicy(max_messages=5), 1), (MemoryPolicy(max_tokens=90), 4)):
        path, inference = tmp_path / str(kept), Remembering()
        path.mkdir()
        async with orchestrator(path, scripted_services(inference=inference, memory=policy)) as stub:
            await talk(stub, 1, 8)
        assert inference.seen() == ["Be brief.", *questions(8 - kept, 8)]


async def test_without_eviction_all_is_seen_however_long(tmp_path):
    policy = MemoryPolicy(max_messages=2, max_tokens=1, eviction=Eviction.NONE)
    inference = Remembering(window=10)
    async with orchestrator(tmp_path, scripted_services(inference=inference, memory=policy)) as stub:
        await talk(stub, 1, 4)
    assert inference.seen() == ["Be brief.", *questions(1, 4)]
    assert not inference.counted


async def test_where_tokens_cannot_be_counted_bytes_are_and_the_turn_goes_on(tmp_path):
    inference = Remembering()
    inference.count_tokens = unavailable
    policy = MemoryPolicy(max_tokens=300)
    async with orchestrator(tmp_path, scripted_services(inference=inference, memory=policy)) as stub:
        with capture_logs() as logs:
            await talk(stub, 1, 6)
    assert inference.seen() == ["Be brief.", *questions(5, 6)], "a turn has 110 bytes"
    assert any("not counted" in entry["event"] for entry in logs)


async def unavailable(*_arguments):
    raise Unavailable("down")


@pytest.mark.parametrize(
    ("seconds", "code"),
    [(0.05, error_pb2.ERROR_CODE_CANCELLED_TIMEOUT), (30, error_pb2.ERROR_CODE_UNSPECIFIED)],
)
async def test_a_count_that_the_deadline_ends_ends_the_turn_and_a_slow_one_does_not(tmp_path, seconds, code):
    async def late(*_arguments):
        raise DeadlineExceeded("late")

    inference = Remembering(window=50)
    inference.count_tokens = late
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await talk(stub, 1, 1)
        request = system_request("question 2", session_id="s")
        request.hints.timeout.FromMilliseconds(round(seconds * 1000))
        response = await execute(stub, request)
    assert response.error.code == code


async def test_every_mode_that_sees_a_conversation_sees_what_memory_leaves_of_it(tmp_path):
    inference = Remembering()
    plan = plan_pb2.ExecutionPlan(steps=[plan_pb2.Step(name="say", kind="infer")])
    modes = [
        STRUCTURED,
        {"mode": execution_pb2.MODE_PLAN, "plan": plan},
    ]
    services = scripted_services(inference=inference, memory=MemoryPolicy(max_messages=2))
    async with orchestrator(tmp_path, services) as stub:
        await talk(stub, 1, 3)
        for fields in modes:
            await talk(stub, 4, 4, **fields)
            assert inference.seen() == ["Be brief.", *questions(3, 4)]


SUMMARIZE = MemoryPolicy(max_messages=4, eviction=Eviction.SUMMARIZE)


async def test_what_goes_is_summarized_once_and_told_and_paid_for(tmp_path):
    journal, inference = SqlJournal(journal_url(tmp_path)), Remembering()
    services = scripted_services(inference=inference, summaries=journal, memory=SUMMARIZE)
    async with orchestrator(tmp_path, services, journal=journal) as stub:
        await talk(stub, 1, 3)
        assert not inference.summarized
        response = await talk(stub, 4, 4, request_id="r4")
        assert inference.seen() == ["Be brief.", *summarized("sum 1", questions(3, 4))]
        command, hints = inference.summarized[0]
        assert command.messages[1].content.startswith(f"What was said:\nuser: question 1\nassistant: {WORDS}\n")
        assert (hints.max_tokens, hints.temperature) == (256, 0.0)
        assert response.token_usage.output_tokens == 6, "of the summary and of the answer"
        events = await timeline(stub, "r4")
        actions = [event.action for event in events if not event.action.startswith("lifecycle")]
        assert actions == ["inference.start", "inference.end"] * 2 + ["execution.end"]
        states = [event.transition.to_state for event in events[:4] if event.WhichOneof("event") == "transition"]
        assert states[-1] == execution_pb2.LIFECYCLE_STATE_PREPARE
        failed = await execute(stub, system_request("x", session_id="s", tools=["hammer"]))
        assert failed.HasField("error")
        await talk(stub, 5, 5)
        assert len(inference.summarized) == 1, "four messages are kept"
        await talk(stub, 6, 6, **STRUCTURED)
        assert inference.seen()[1].startswith(f"{SUMMARY}sum 2"), "question 5 was answered, so questions 3 and 4 go"
        assert len(inference.summarized) == 2
        await talk(stub, 6, 6, **STRUCTURED)
        assert len(inference.summarized) == 2, "nothing more goes, so the summary is used again"
        told = inference.summarized[1][0].messages[1].content
        assert told.startswith("Summary so far:\nsum 1\n\nWhat was said since:\nuser: question 3\n")
    journal, inference = SqlJournal(journal_url(tmp_path)), Remembering()
    services = scripted_services(inference=inference, summaries=journal, memory=SUMMARIZE)
    async with orchestrator(tmp_path, services, journal=journal) as stub:
        await talk(stub, 6, 6)
        assert inference.seen() == ["Be brief.", *summarized("sum 2", questions(5, 6))]
        assert not inference.summarized, "it outlives a restart"
        await call_unary("orchestrator", stub.DeleteSession, pb.DeleteSessionRequest(session_id="s"))
        assert await journal.get_summary(session("s")) is None
        await talk(stub, 1, 2)
        assert inference.seen() == ["Be brief.", *questions(1, 2)], "it goes with its conversation"


@pytest.mark.parametrize("window", range(160, 184, 4))
async def test_a_summary_is_made_when_the_window_is_full_and_has_room_itself(tmp_path, window):
    inference = Remembering(window)
    inference.has_long_summaries = True
    policy = MemoryPolicy(eviction=Eviction.SUMMARIZE)
    async with orchestrator(tmp_path, scripted_services(inference=inference, memory=policy)) as stub:
        await talk(stub, 1, 15)
    assert inference.seen()[1].startswith(SUMMARY)
    assert 1 < len(inference.summarized) < 8
    for command in inference.commands:
        if not command.messages[0].content.startswith("You keep"):
            prompt = sum(len(message.content.split()) + 1 for message in command.messages)
            assert prompt + HINTS.max_tokens <= window


async def test_what_is_summarized_is_counted_where_its_bytes_are_too_many(tmp_path):
    inference = Remembering(window=2000)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await talk(stub, 1, 20)
    policy = MemoryPolicy(max_messages=2, eviction=Eviction.SUMMARIZE)
    async with orchestrator(tmp_path, scripted_services(inference=inference, memory=policy)) as stub:
        await talk(stub, 21, 21)
    told = inference.summarized[0][0].messages[1].content
    assert "question 1\n" in told
    assert "question 19\n" in told
    assert inference.seen() == ["Be brief.", *summarized("sum 1", questions(20, 21))]


async def test_a_wider_policy_does_not_show_again_what_a_summary_stands_for(tmp_path):
    inference, summaries = Remembering(), ScriptedSummaries()
    for most in (2, 100):
        policy = MemoryPolicy(max_messages=most, eviction=Eviction.SUMMARIZE)
        services = scripted_services(inference=inference, summaries=summaries, memory=policy)
        async with orchestrator(tmp_path, services) as stub:
            await talk(stub, *((1, 3) if most == 2 else (4, 4)))
    assert inference.seen() == ["Be brief.", *summarized("sum 1", questions(2, 4))]


async def test_a_summary_that_fails_is_told_in_the_log_and_the_turn_goes_on_without(tmp_path):
    inference = Remembering()
    inference.failure = Unavailable("gone")
    services = scripted_services(inference=inference, memory=SUMMARIZE)
    async with orchestrator(tmp_path, services) as stub:
        with capture_logs() as logs:
            await talk(stub, 1, 4)
        assert inference.seen() == ["Be brief.", *questions(3, 4)]
        assert [entry["reason"] for entry in logs if "not summarized" in entry["event"]] == ["gone"]
        inference.failure = None
        await talk(stub, 5, 5)
        assert inference.seen() == ["Be brief.", *summarized("sum 2", questions(4, 5))]
        told = inference.summarized[-1][0].messages[1].content
        assert "question 1" in told
        assert "question 2" in told


async def test_the_inference_service_counts_and_its_window_is_learned_from_what_it_says():
    engine = ScriptedEngine()
    generation = generation_over(engine)
    models = Models([ModelSpec(engine.model, 0)], lambda _spec: served(generation))
    try:
        async with serving([registration_of(models)]) as (channel, _):
            first, second = GrpcInference(channel, 0), GrpcInference(channel, 0)
            messages = (Message(Role.USER, "hi"),)
            count = await first.count_tokens(messages, (), ["abc", ""], "")
            assert count.texts == (3, 0)
            assert count.chat == len("user: hi\nassistant: ")
            assert count.context_window == engine.model.context_window == first.context_window("")
            assert (await first.count_tokens((), (), ["é"], "")).chat == 0
            assert second.context_window("") == 0
            command = Infer(messages, (), ToolChoice(), engine_text="", seed=None)
            async for _ in second.infer(command, Hints(max_tokens=5)):
                pass
            assert second.context_window("") == engine.model.context_window
    finally:
        await generation.close()


def test_the_settings_give_the_policy(monkeypatch):
    for name, value in (("MAX_MESSAGES", "10"), ("MAX_TOKENS", "500"), ("EVICTION", "summarize")):
        monkeypatch.setenv(f"PAGANTIC_ORCHESTRATOR_MEMORY_{name}", value)
    settings = load_settings(OrchestratorSettings)
    assert (settings.memory_max_messages, settings.memory_max_tokens) == (10, 500)
    assert settings.memory_eviction is Eviction.SUMMARIZE
