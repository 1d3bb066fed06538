"""Loads a stored conversation as turns, and lists all conversations."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gateway.tui.work.answer import Answer
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2, session_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client import AsyncClient, CallPart, TextPart
from pagantic_common.client.descriptions import count_of
from pagantic_common.client.tables import describe_age
from pagantic_common.domain.errors import NotFound, PaganticError

MESSAGES_SHOWN: Final = 60
SESSIONS_SHOWN: Final = 200
# The key of a session's title, which the console also reads and writes.
TITLE: Final = "console.title"
MAX_TITLE_CHARS: Final = 80
_ENDED: Final = (
    execution_pb2.LIFECYCLE_STATE_COMPLETE,
    execution_pb2.LIFECYCLE_STATE_ERROR,
    execution_pb2.LIFECYCLE_STATE_CANCELLED,
)


@dataclass
class Turn:
    """A message and its answer. If the answer has no id, its execution is unknown."""

    said: str
    answer: Answer

    @classmethod
    def of(cls, said: str, request_id: str) -> Turn:
        """Return a new turn."""
        return cls(said, Answer(request_id))


@dataclass(frozen=True)
class Listed:
    """A conversation as an entry of the list."""

    session_id: str
    title: str
    about: str


@dataclass
class Conversation:
    """A conversation as shown: its newest turns, and whether the last turn is still being written."""

    session_id: str
    title: str = ""
    turns: list[Turn] = field(default_factory=list)
    left_out: int = 0
    is_stored: bool = False
    is_running: bool = False


async def list_conversations(client: AsyncClient) -> tuple[list[Listed], bool]:
    """Return the conversations, the most recently used first, and whether there are more conversations."""
    page = await client.list_sessions_page(pb.ListSessionsRequest(page_size=SESSIONS_SHOWN, state_key=TITLE))
    now_s = time.time()
    return [_listed(session, now_s) for session in page.sessions], bool(page.next_page_token)


async def load_conversation(client: AsyncClient, session_id: str) -> Conversation:
    """Return a stored conversation with its newest turns. Raises NotFound if the conversation does not exist."""
    newest = await _newest_execution(client, session_id)
    request = pb.GetSessionRequest(session_id=session_id, max_messages=MESSAGES_SHOWN)
    loaded = Conversation(session_id, is_stored=True)
    try:
        session = await client.get_session_page(request)
    except NotFound:
        if newest is None:
            raise
        # The session does not exist yet, because its first turn is still being written.
        session = session_pb2.Session()
    loaded.title = _title_of(session)
    loaded.left_out = session.first_position
    loaded.turns = turns_of(session.messages)
    if newest is not None:
        await _add_newest(client, loaded, newest)
    return loaded


async def name_conversation(client: AsyncClient, session_id: str, said: str) -> str:
    """Set a conversation's title to its first message, and return the title even if it could not be stored."""
    title = title_from(said)
    with contextlib.suppress(PaganticError):
        await client.update_session(session_id, {TITLE: title})
    return title


def title_from(said: str) -> str:
    """Return the title derived from a first message."""
    return said.strip().split("\n", 1)[0][:MAX_TITLE_CHARS]


def turns_of(messages: Iterable[message_pb2.Message]) -> list[Turn]:
    """Return the turns of stored messages. Messages before the first user message also form a turn."""
    turns: list[Turn] = []
    for message in messages:
        if message.removed:
            continue
        if message.role == message_pb2.ROLE_USER or not turns:
            turns.append(Turn("", Answer("")))
        if message.role == message_pb2.ROLE_USER:
            turns[-1].said = _said_in(message)
        else:
            _add_message(turns[-1].answer, message)
    return turns


def _add_message(answer: Answer, message: message_pb2.Message) -> None:
    if message.role == message_pb2.ROLE_TOOL:
        for part in answer.parts:
            if isinstance(part, CallPart) and part.call_id == message.tool_call_id:
                part.result = message.content
        return
    if message.reasoning:
        answer.reasoning.add(message.reasoning)
    if message.content:
        answer.parts.append(TextPart(message.content))
    answer.parts += [CallPart(call.id, call.name, call.arguments_json, has_ended=True) for call in message.tool_calls]


def _said_in(message: message_pb2.Message) -> str:
    images = sum(part.WhichOneof("part") == "image" for part in message.parts)
    if not images:
        return message.content
    return f"({count_of(images, 'image')})\n{message.content}"


async def _newest_execution(client: AsyncClient, session_id: str) -> execution_pb2.Execution | None:
    """Return a conversation's newest execution, or None if it is not kept or the key may not read it."""
    with contextlib.suppress(PaganticError):
        for execution in await client.list_executions(session_id=session_id, limit=1):
            return await client.get_execution(execution.request_id)
    return None


async def _add_newest(client: AsyncClient, loaded: Conversation, newest: execution_pb2.Execution) -> None:
    """Add the newest execution to the last turn or, if the execution is still running, add a turn that follows it."""
    if newest.state.current not in _ENDED:
        message = "(The message comes with the end of its answer.)"
        if newest.request.messages:
            message = newest.request.messages[-1].content
        loaded.turns.append(Turn(message, Answer(newest.request_id)))
        loaded.is_running = True
        return
    if not loaded.turns or not _has_end_of(loaded.turns[-1], newest):
        return
    answer = loaded.turns[-1].answer
    answer.request_id = newest.request_id
    answer.end(newest.response)
    with contextlib.suppress(PaganticError):
        answer.events = (await client.timeline(newest.request_id))[:]


def _has_end_of(turn: Turn, execution: execution_pb2.Execution) -> bool:
    """Return whether a turn contains the answer of an execution, which failed and early stopped executions lack."""
    if execution.state.current == execution_pb2.LIFECYCLE_STATE_ERROR or not execution.response.content:
        return False
    return turn.answer.parts[-1:] == [TextPart(execution.response.content)]


def _listed(session: session_pb2.Session, now_s: float) -> Listed:
    age = describe_age(now_s - session.updated_at.ToNanoseconds() / 1e9)
    about = f"{count_of(session.message_count, 'message')}, {age} ago"
    return Listed(session.session_id, _title_of(session), about)


def _title_of(session: session_pb2.Session) -> str:
    try:
        title = json.loads(session.state_json.get(TITLE, '""'))
    except ValueError:
        return ""
    return title if isinstance(title, str) else ""
