"""Limits the memory of a stored conversation: evicts the oldest messages, and puts a summary in their place.

Theory of operation. A conversation is cut only before a question, so that whole turns are evicted: the question, the
tool calls, their results and the answer. A cut that barely met the limit would move on nearly every turn, and each
change of the prompt's prefix would invalidate the KV cache. So a cut goes down to a low-water mark of half the limit,
and stays until the conversation reaches the limit again. The position of the cut is stored.

Invariants:
    1. The kept messages are a contiguous end of the conversation, and begin at a cut.
    2. The kept messages are within the limits, unless the new turn continues an earlier turn instead of beginning with
       a question. In that case the earlier turn is kept.
    3. A conversation within the limits loses nothing.
    4. A tool result is never kept without its call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from pagantic_common.domain import images
from pagantic_common.domain.messages import Message, Role, ToolDefinition
from pagantic_common.domain.text.quoting import fenced

DEFAULT_OUTPUT_TOKENS = 2048
SUMMARY_TOKENS = 256
_LOW_WATER = 2  # divisor of the limit: the maximum size after a cut
_TOO_LITTLE = 4  # A cut that keeps less than the limit divided by this number was made under a lower limit.
_MESSAGE_BYTES = 16  # maximum number of tokens that a template adds to a message
_PROMPT_BYTES = 256  # maximum number of tokens that a template adds to a prompt
_TOOL_BYTES = 64  # maximum number of tokens that a template adds to a tool
_SUMMARY_PROMPT_TOKENS = 512  # size of the instructions and the previous summary

SUMMARY_HEADING = "Summary of the conversation so far:"
_SUMMARY_INSTRUCTIONS = """\
You keep the memory of a conversation. Write what the assistant must still know of it: who the user is, what they want,
facts, names and numbers, decisions, what is still open. Keep what the summary so far says and still holds. Short
sentences, at most 150 words, nothing but the summary."""


class Eviction(StrEnum):
    """The treatment of the oldest messages when a conversation is too long."""

    FIFO = "fifo"
    NONE = "none"
    SUMMARIZE = "summarize"


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """The limits of a conversation in a prompt.

    A `max_messages` of 0 means no limit. A `max_tokens` of 0 means that the context window is the limit.
    """

    max_messages: int = 0
    max_tokens: int = 0
    eviction: Eviction = Eviction.FIFO


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of the oldest `message_count` messages.

    An empty `text` means that the messages were evicted without a summary.
    """

    text: str
    message_count: int


def cuts_of(history: Sequence[Message], new_turn: Sequence[Message]) -> tuple[int, ...]:
    """Return the positions at which the history may be cut, in ascending order from 0.

    The last cut keeps nothing of the history. It is missing if the new turn does not begin with a question.
    """
    messages = [*history, *(message for message in new_turn if message.role is not Role.SYSTEM)]
    cuts = [0]
    called_at: dict[str, int] = {}
    for position, message in enumerate(messages):
        if _begins_turn(messages, position, len(history)):
            cuts.append(position)
        if message.role is Role.TOOL:
            call = called_at.get(message.tool_call_id, len(messages))
            cuts = [cut for cut in cuts if cut <= call]  # A later cut would separate the result from its call.
        called_at.update((call.id, position) for call in message.tool_calls)
    return tuple(cuts)


def _begins_turn(messages: Sequence[Message], position: int, end: int) -> bool:
    """Return whether a turn begins at `position`. At the history's `end`, this is the new turn."""
    if not 0 < position <= end or messages[position].role is not Role.USER or not messages[position].is_shown:
        return False
    return position == end or messages[position - 1].role is not Role.USER


def cut_for(cuts: Sequence[int], sizes: Sequence[int], limit: int, before: int = 0) -> int:
    """Return the first cut if everything fits the limit, else the previous cut if it still fits, else a new cut.

    A new cut keeps at most half of the limit if possible.

    Args:
        cuts: The positions for a cut; the first is the present start of the history.
        sizes: The size of each message of the history, in the limit's unit.
        limit: The largest size to keep.
        before: The position of the previous cut, or 0 if there was no previous cut.
    """
    fitting = cut_by_size(cuts, sizes, limit)
    if fitting in (cuts[0], cuts[-1]):
        return fitting
    if fitting <= before <= cut_by_size(cuts, sizes, limit // _TOO_LITTLE) and before in cuts[:-1]:
        return before
    low = cut_by_size(cuts, sizes, limit // _LOW_WATER)
    if low == cuts[-1]:
        return fitting
    return low


def cut_by_size(cuts: Sequence[int], sizes: Sequence[int], limit: int) -> int:
    """Return the first cut that keeps at most `limit`, or the last cut if every cut keeps more."""
    kept = [*accumulate(reversed(sizes), initial=0)][::-1]  # total size from each position to the end
    return next((cut for cut in cuts if kept[cut] <= limit), cuts[-1])


def cut_at(cuts: Sequence[int], position: int) -> int:
    """Return the last cut at or before `position`."""
    return max(cut for cut in cuts if cut <= position)


def cuts_from(cuts: Sequence[int], start: int) -> tuple[int, ...]:
    """Return the cuts at or after `start`."""
    return tuple(cut for cut in cuts if cut >= start)


def counted_text(message: Message) -> str:
    """Return the part of a message's text that every template includes."""
    calls = [f"{call.name} {call.arguments_json}" for call in message.tool_calls]
    return "\n".join([message.content, *calls])


def with_images(texts: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
    """Return the token counts of messages: the given count of each text, plus an estimate for its images."""
    return tuple(
        tokens + images.ESTIMATED_TOKENS * len(message.images) for tokens, message in zip(texts, messages, strict=True)
    )


def byte_count(message: Message) -> int:
    """Return an upper bound for a message's token count.

    The bound is the size of its text in bytes, plus the maximum number of tokens of its images.
    """
    texts = [message.content, message.reasoning, message.name, message.tool_call_id]
    texts += [text for call in message.tool_calls for text in (call.id, call.name, call.arguments_json)]
    return sum(len(text.encode()) for text in texts) + images.MOST_TOKENS * len(message.images)


def most_tokens(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> int:
    """Return an upper bound for the token count of a prompt, based on its size in bytes."""
    described = sum(len(f"{tool.name}{tool.description}{tool.parameters_json}".encode()) for tool in tools)
    message_bytes = sum(byte_count(message) + _MESSAGE_BYTES for message in messages)
    return _PROMPT_BYTES + message_bytes + 2 * described + _TOOL_BYTES * len(tools)


def output_tokens(max_tokens: int, window: int) -> int:
    """Return the number of tokens to reserve for an answer.

    This is the requested limit, or else a quarter of the window, but at most 2048.
    """
    return max_tokens or min(DEFAULT_OUTPUT_TOKENS, window // 4)


def summary_tokens(window: int) -> int:
    """Return the token limit of a summary. A `window` of 0 means that the context window is unknown."""
    if window == 0:
        return SUMMARY_TOKENS
    return min(SUMMARY_TOKENS, window // 8)


def summary_room(window: int) -> int:
    """Return the token limit of the messages to summarize, which leaves room for the summary and the instructions."""
    return max(window // 2, window - SUMMARY_TOKENS - _SUMMARY_PROMPT_TOKENS)


def remembered(summary: Summary | None, kept: Sequence[Message]) -> tuple[Message, ...]:
    """Return the history that the model sees.

    It consists of the summary of the evicted messages, if there is a summary, and the kept messages.
    """
    if summary is None or not summary.text:
        return tuple(kept)
    return (Message(Role.USER, content=f"{SUMMARY_HEADING}\n\n{fenced(summary.text)}"), *kept)


def summary_request(
    summary: Summary | None, gone: Sequence[Message], tokens: Sequence[int], room: int
) -> tuple[Message, ...]:
    """Return the conversation that asks a model to summarize evicted messages and the previous summary.

    If the messages exceed `room` tokens, the oldest messages are omitted. If the newest message alone is too long, its
    end is omitted.
    """
    lines: list[str] = []
    for message, count in zip(reversed(gone), reversed(tokens), strict=True):
        if not message.is_shown:
            continue
        if count > room:
            if not lines:
                lines.append(
                    f"{message.role}: {counted_text(message).encode()[: max(0, room)].decode(errors='ignore')}"
                )
            break
        room -= count + _MESSAGE_BYTES
        lines.append(f"{message.role}: {counted_text(message)}")
    user_text = "\n".join(["What was said:", *reversed(lines)])
    if summary is not None and summary.text:
        user_text = "\n".join([f"Summary so far:\n{summary.text}\n", "What was said since:", *reversed(lines)])
    return (Message(Role.SYSTEM, content=_SUMMARY_INSTRUCTIONS), Message(Role.USER, content=user_text))
