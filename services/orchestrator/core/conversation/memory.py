"""What a model sees of a stored conversation: which of its oldest messages go, and what stands for them.

Theory of operation. A conversation is cut only where a new question begins, so that whole turns go: question, tool
calls, their results, answer. A cut that only just met the limit would move with nearly every turn, and with it the
beginning of the prompt, whose KV cache would be lost each time. So a cut goes down to a low-water mark, half of the
limit, and stays until the conversation has grown up to the limit again. Where it stays is kept with the conversation.

Invariants:
    1. What is kept is an unbroken end of the conversation, and begins at a cut.
    2. It is within the limits, or it is what cannot go: what the new turn goes on from, where that is no question.
    3. Nothing goes of a conversation that is within the limits as it is.
    4. No tool result is without its call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from pagantic_common.domain.messages import Message, Role, ToolDefinition

DEFAULT_OUTPUT_TOKENS = 2048
SUMMARY_TOKENS = 256
_LOW_WATER = 2  # parts of the limit: one of them is what a cut leaves
_TOO_LITTLE = 4  # a cut leaves half; less than a quarter says that the limit was lower then
_MESSAGE_BYTES = 16  # what a template puts around a message, at most, in tokens
_PROMPT_BYTES = 256  # and around a prompt
_TOOL_BYTES = 64
_SUMMARY_PROMPT_TOKENS = 512  # the instructions and the summary before

_SUMMARY_HEADING = "Summary of the conversation so far:"
_SUMMARY_INSTRUCTIONS = """\
You keep the memory of a conversation. Write what the assistant must still know of it: who the user is, what they want,
facts, names and numbers, decisions, what is still open. Keep what the summary so far says and still holds. Short
sentences, at most 150 words, nothing but the summary."""


class Eviction(StrEnum):
    """What happens to the oldest messages when a conversation is too long."""

    FIFO = "fifo"
    NONE = "none"
    SUMMARIZE = "summarize"


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """How much of a conversation a model sees; 0 messages are any number, 0 tokens what the window leaves."""

    max_messages: int = 0
    max_tokens: int = 0
    eviction: Eviction = Eviction.FIFO


@dataclass(frozen=True, slots=True)
class Summary:
    """What stands for the oldest `message_count` messages of a conversation; no text where they only went."""

    text: str
    message_count: int


def cuts_of(history: Sequence[Message], new_turn: Sequence[Message]) -> tuple[int, ...]:
    """Return the positions in the history from which it may be kept, ascending, from 0.

    The last one keeps nothing; it is missing when the new turn does not begin with a question.
    """
    messages = [*history, *(message for message in new_turn if message.role is not Role.SYSTEM)]
    cuts = [0]
    called_at: dict[str, int] = {}
    for position, message in enumerate(messages):
        follows_question = 0 < position < len(history) and messages[position - 1].role is Role.USER
        if 0 < position <= len(history) and message.role is Role.USER and not follows_question:
            cuts.append(position)
        if message.role is Role.TOOL:
            while cuts[-1] > called_at.get(message.tool_call_id, len(messages)):
                cuts.pop()
        called_at.update((call.id, position) for call in message.tool_calls)
    return tuple(cuts)


def cut_for(cuts: Sequence[int], sizes: Sequence[int], limit: int, before: int = 0) -> int:
    """Return the cut from which the history is kept: all of it, else from where it was `before`, else half the limit.

    Args:
        cuts: Where the history may be cut; the first is where it begins now.
        sizes: Of each message of the history, in what the limit counts.
        limit: Most that may be kept.
        before: Where the last cut was, 0 for none.
    """
    fitting = cut_by_size(cuts, sizes, limit)
    if fitting in (cuts[0], cuts[-1]):
        return fitting
    if fitting <= before <= cut_by_size(cuts, sizes, limit // _TOO_LITTLE) and before in cuts[:-1]:
        return before
    low = cut_by_size(cuts, sizes, limit // _LOW_WATER)
    return low if low != cuts[-1] else fitting


def cut_by_size(cuts: Sequence[int], sizes: Sequence[int], limit: int) -> int:
    """Return the first cut from which at most `limit` is kept, wherever that is."""
    kept = [*accumulate(reversed(sizes), initial=0)][::-1]  # from each position to the end
    return next((cut for cut in cuts if kept[cut] <= limit), cuts[-1])


def cut_at(cuts: Sequence[int], position: int) -> int:
    """Return the last cut that loses nothing from `position` on."""
    return max(cut for cut in cuts if cut <= position)


def cuts_from(cuts: Sequence[int], start: int) -> tuple[int, ...]:
    """Return the cuts from `start` on."""
    return tuple(cut for cut in cuts if cut >= start)


def counted_text(message: Message) -> str:
    """Return what of a message is counted: all that every template shows of it."""
    calls = [f"{call.name} {call.arguments_json}" for call in message.tool_calls]
    return "\n".join([message.content, *calls]) if calls else message.content


def byte_count(message: Message) -> int:
    """Return the bytes of a message's text; it has no more tokens than that."""
    texts = [message.content, message.reasoning, message.name, message.tool_call_id]
    texts += [text for call in message.tool_calls for text in (call.id, call.name, call.arguments_json)]
    return sum(len(text.encode()) for text in texts)


def most_tokens(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> int:
    """Return a number that the tokens of a prompt do not exceed, from its bytes alone."""
    described = sum(len(f"{tool.name}{tool.description}{tool.parameters_json}".encode()) for tool in tools)
    said = sum(byte_count(message) + _MESSAGE_BYTES for message in messages)
    return _PROMPT_BYTES + said + 2 * described + _TOOL_BYTES * len(tools)


def output_tokens(max_tokens: int, window: int) -> int:
    """Return the tokens kept free for an answer: those asked for, else a quarter of the window, at most 2048."""
    return max_tokens or min(DEFAULT_OUTPUT_TOKENS, window // 4)


def summary_tokens(window: int) -> int:
    """Return the most tokens of a summary; a window of 0 is not known."""
    return min(SUMMARY_TOKENS, window // 8) if window else SUMMARY_TOKENS


def summary_room(window: int) -> int:
    """Return the most tokens of what a summary is made of: beside it, the one before and the instructions."""
    return max(window // 2, window - SUMMARY_TOKENS - _SUMMARY_PROMPT_TOKENS)


def remembered(summary: Summary | None, kept: Sequence[Message]) -> tuple[Message, ...]:
    """Return what the model sees of a conversation: the summary of what went, and what is kept."""
    if summary is None or not summary.text:
        return tuple(kept)
    return (Message(Role.SYSTEM, content=f"{_SUMMARY_HEADING}\n{summary.text}"), *kept)


def summary_request(
    summary: Summary | None, gone: Sequence[Message], tokens: Sequence[int], room: int
) -> tuple[Message, ...]:
    """Return the conversation that asks a model for a summary of what went, and of the summary before it.

    Of what has more tokens than `room` the oldest is left out; of a message that is too long alone, its end.
    """
    said: list[str] = []
    for message, count in zip(reversed(gone), reversed(tokens), strict=True):
        if count > room:
            if not said:
                said.append(f"{message.role}: {counted_text(message).encode()[: max(0, room)].decode(errors='ignore')}")
            break
        room -= count + _MESSAGE_BYTES
        said.append(f"{message.role}: {counted_text(message)}")
    before = f"Summary so far:\n{summary.text}\n\n" if summary is not None and summary.text else ""
    told = "\n".join(reversed(said))
    return (
        Message(Role.SYSTEM, content=_SUMMARY_INSTRUCTIONS),
        Message(Role.USER, content=f"{before}What was said{' since' if before else ''}:\n{told}"),
    )
