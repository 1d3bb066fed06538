import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.messages import Message, Role, ToolCall, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.conversation import memory
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.model.request import Mode, Request
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import Inferred

ASK = Message(Role.USER, "what?")
SYSTEM = Message(Role.SYSTEM, "be brief")


def call(*ids):
    return Message(Role.ASSISTANT, tool_calls=tuple(ToolCall(one, "clock", "{}") for one in ids))


def result(one):
    return Message(Role.TOOL, "noon", tool_call_id=one, name="clock")


texts = st.text(min_size=1, max_size=40)
users = texts.map(lambda text: Message(Role.USER, text))
answers = texts.map(lambda text: Message(Role.ASSISTANT, text))


@st.composite
def turns(draw):
    """Return a turn: questions, rounds of tool calls whose ids come again in other turns, an answer or none."""
    messages = draw(st.lists(users, min_size=1, max_size=2))
    for _ in range(draw(st.integers(0, 2))):
        ids = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=2, unique=True))
        messages += [call(*ids), *(result(one) for one in ids)]
    return messages + draw(st.lists(answers, max_size=1))


histories = st.lists(turns(), max_size=8).map(lambda parts: [message for part in parts for message in part])
new_turns = st.sampled_from([(ASK,), (SYSTEM, ASK), (result("a"),), (call("z"), result("z"), ASK)])


def is_whole(history, new_turn):
    """Tell whether each tool result follows its call, in what is kept and what the new turn adds."""
    called = set()
    for message in (*history, *new_turn):
        called |= {one.id for one in message.tool_calls}
        if message.role is Role.TOOL and message.tool_call_id not in called:
            return False
    return True


@given(histories, new_turns)
def test_a_cut_begins_with_a_question_and_leaves_no_result_without_its_call(history, new_turn):
    whole = is_whole(history, new_turn)
    cuts = memory.cuts_of(history, new_turn)
    assert list(cuts) == sorted(set(cuts))
    assert cuts[0] == 0
    begins_with_question = next(m for m in new_turn if m.role is not Role.SYSTEM).role is Role.USER
    assert (cuts[-1] == len(history)) == (begins_with_question or not history)
    for cut in cuts[1:]:
        kept = history[cut:]
        assert not kept or kept[0].role is Role.USER
        assert not whole or is_whole(kept, new_turn)


def test_questions_that_follow_each_other_stay_together_and_every_turn_may_go():
    history = [ASK, ASK, call("a"), result("a"), ASK, call("a"), result("a"), Message(Role.ASSISTANT, "noon")]
    assert memory.cuts_of(history, (ASK,)) == (0, 4, 8)
    assert memory.cuts_of([Message(Role.ASSISTANT, "hi"), *history], (ASK,)) == (0, 1, 5, 9)


def test_a_turn_does_not_begin_with_a_question_that_was_removed():
    gone, yes = Message(Role.USER, removed=True), Message(Role.ASSISTANT, "yes")
    assert memory.cuts_of([ASK, yes, gone, yes, ASK, yes], (ASK,)) == (0, 4, 6)


def test_a_summary_has_no_lines_for_messages_that_were_removed():
    history = [Message(Role.USER, removed=True), ASK, Message(Role.ASSISTANT, reasoning="hm")]
    asked = memory.summary_request(None, history, [0, 1, 1], 100)[1]
    assert asked.content == "What was said:\nuser: what?"


def test_what_the_new_turn_goes_on_from_stays():
    history = [ASK, Message(Role.ASSISTANT, "yes"), ASK, call("a")]
    assert memory.cuts_of(history, (result("a"),)) == (0, 2)
    assert memory.cuts_of([ASK, call("a"), ASK, Message(Role.ASSISTANT, "hm")], (result("a"), ASK)) == (0,)


@given(histories, st.data())
def test_what_is_kept_is_within_the_limit_and_nothing_goes_of_what_fits(history, data):
    sizes = data.draw(st.lists(st.integers(0, 50), min_size=len(history), max_size=len(history)))
    limit, before = data.draw(st.integers(0, 200)), data.draw(st.integers(0, len(history)))
    cuts = memory.cuts_of(history, (ASK,))
    cut = memory.cut_for(cuts, sizes, limit, before)
    assert cut in cuts
    assert sum(sizes[cut:]) <= limit
    assert sum(sizes) > limit or cut == 0
    if cut == cuts[-1]:
        assert memory.cut_by_size(cuts, sizes, limit) == cut, "all goes only where nothing fits"


def starts_of(count, turn_tokens, limits):
    """Return where the history begins in each turn of a conversation, each cut made after the one before."""
    found, before = [], 0
    for turns_so_far in range(1, count):
        history = [ASK, Message(Role.ASSISTANT, "x")] * turns_so_far
        tokens = [turn_tokens // 4, turn_tokens * 3 // 4] * turns_so_far
        limit = limits(turns_so_far)
        before = memory.cut_for(memory.cuts_of(history, (ASK,)), tokens, limit, before)
        assert sum(tokens[before:]) <= limit
        found.append(before)
    return found


def turns_between_cuts(starts):
    moved = [turn for turn in range(1, len(starts)) if starts[turn] != starts[turn - 1]]
    return [later - earlier for earlier, later in itertools.pairwise(moved)]


@pytest.mark.parametrize(("turn_tokens", "least"), [(480, 2), (240, 5), (120, 11), (40, 35)])
def test_the_beginning_stays_for_several_turns_between_cuts_while_a_conversation_grows(turn_tokens, least):
    starts = starts_of(300, turn_tokens, lambda _: 2800)
    assert starts == sorted(starts), "what went stays away"
    assert min(turns_between_cuts(starts)) >= least


def test_the_beginning_stays_although_the_new_questions_leave_now_more_and_now_less_room():
    starts = starts_of(300, 120, lambda turn: 2800 - 90 * (turn % 3))
    assert min(turns_between_cuts(starts)) >= 10


def test_a_limit_that_grew_much_is_used_again():
    history = [ASK, Message(Role.ASSISTANT, "x")] * 50
    cuts = memory.cuts_of(history, (ASK,))
    assert memory.cut_for(cuts, [10] * 100, 900, 96) == 56, "a model with a small window had left 40 tokens"
    assert memory.cut_for(cuts, [10] * 100, 1000, 96) == 0


@pytest.mark.parametrize(("limit", "kept"), [(100, 12), (12, 12), (11, 4), (4, 2), (3, 2), (2, 2), (1, 0)])
def test_messages_are_kept_by_number_in_whole_turns(limit, kept):
    history = [ASK, Message(Role.ASSISTANT, "yes")] * 6
    cuts = memory.cuts_of(history, (ASK,))
    assert len(history) - memory.cut_for(cuts, [1] * len(history), limit) == kept


@given(histories, st.text(min_size=300, max_size=400))
def test_bytes_are_never_fewer_than_the_tokens_that_they_can_be(history, described):
    tools = (ToolDefinition("clock", described, "{}"),)
    most = memory.most_tokens(history, tools)
    assert most > sum(len(memory.counted_text(message).encode()) for message in history) + len(described.encode())


@given(histories.filter(bool), st.integers(-5, 400), st.sampled_from([None, Summary("They met.", 2)]))
def test_a_summary_is_asked_of_the_newest_that_has_room(history, room, before):
    tokens = [memory.byte_count(message) for message in history]
    system, asked = memory.summary_request(before, history, tokens, room)
    assert system.role is Role.SYSTEM
    assert ("They met." in asked.content) == (before is not None)
    told = asked.content.split(":\n")[-1]
    assert len(told.encode()) <= max(0, room) + 16 * len(history) + 16
    if sum(tokens) + 16 * len(history) <= room:
        assert all(memory.counted_text(message) in asked.content for message in history)


def test_a_message_that_is_too_long_alone_is_summarized_from_its_beginning():
    long = Message(Role.USER, "é" * 50)
    asked = memory.summary_request(None, [ASK, long], [5, 100], 31)[1]
    assert asked.content == f"What was said:\nuser: {'é' * 15}"


def test_a_summary_stands_before_what_is_kept():
    assert memory.remembered(None, [ASK]) == memory.remembered(Summary("", 2), [ASK]) == (ASK,)
    told = memory.remembered(Summary("They met.", 2), [ASK])
    assert told == (Message(Role.USER, "Summary of the conversation so far:\n\n```\nThey met.\n```"), ASK)


def test_room_is_kept_for_the_answer_and_the_summary():
    assert [memory.output_tokens(*one) for one in ((100, 4096), (0, 4096), (0, 32768))] == [100, 1024, 2048]
    assert [memory.summary_tokens(window) for window in (0, 512, 4096)] == [256, 64, 256]


def test_what_preparing_cost_is_part_of_the_usage():
    work = Request(request_id="r", mode=Mode.CHAT, messages=(ASK,))
    prepared = machine.step(machine.start(work).run, Prepared(usage=TokenUsage(prompt_tokens=7)))
    said = InferenceOutput("ok", FinishReason.STOP, usage=TokenUsage(prompt_tokens=5))
    assert machine.step(prepared.run, Inferred(said)).run.usage.prompt_tokens == 12
