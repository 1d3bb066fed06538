"""What the app needs of the place where executions, their events and conversations are kept."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from pagantic_common.domain.errors import Failure
from pagantic_common.domain.messages import Message
from services.orchestrator.core.execution.events import Event
from services.orchestrator.core.execution.lifecycle import State
from services.orchestrator.core.execution.replay import Admitted, Entry
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.model.response import Response

ItemT = TypeVar("ItemT")

MAX_STATE_VALUES = 100  # of one session
MAX_STATE_BYTES = 256 * 1024  # of all of them, as UTF-8


class Durability(StrEnum):
    """What a write survives once it returned: the end of this process, or a power cut too."""

    PROCESS = "process"
    POWER = "power"


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """An execution as the journal knows it; `response` is None until it has ended."""

    request_id: str
    session_id: str
    trace_id: str
    mode: Mode
    started_at: datetime
    state: State
    entered_at: datetime
    attempt: int
    fingerprint: str
    total_steps: int = 0
    last_step: str = ""
    last_failure: Failure | None = None
    response: Response | None = None
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A stored conversation; `messages` and `state` are empty in lists. The values of `state` are JSON documents."""

    session_id: str
    messages: tuple[Message, ...]
    message_count: int
    created_at: datetime
    updated_at: datetime
    state: Mapping[str, str] = field(default_factory=dict)
    first_position: int = 0


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """What the executions of one session with one model used and cost, ended ones of any age."""

    session_id: str
    model: str
    requests: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Page(Generic[ItemT]):
    """Some of a list, and the token that the next ones come after, empty for the last page."""

    items: list[ItemT]
    next_token: str = ""


@dataclass(frozen=True, slots=True)
class Write:
    """What one write stores, all or nothing: where the execution stands, and what happened.

    `entries` are numbered from `position`. Once the record has a response: what the conversation gains, and the cost.
    """

    record: ExecutionRecord
    events: tuple[Event, ...] = ()
    entries: tuple[Entry, ...] = ()
    position: int = 0
    turn: tuple[Message, ...] = ()
    used: UsageTotal | None = None


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a beat showed: the count of every owner's beats, and the executions of this owner that are to stop."""

    beats: Mapping[str, int]
    to_cancel: tuple[str, ...] = ()


class ExecutionJournal(Protocol):
    """Executions, their events, and what they can be resumed from."""

    async def admit(
        self, record: ExecutionRecord, admitted: Admitted, *, takes_turn: bool = False
    ) -> ExecutionRecord | None:
        """Store a new execution of this owner and return None, or return the one that has the id already.

        Raises Aborted, and stores nothing, when it is to take its session's turn and another execution has it.
        """

    def admit_new(self, record: ExecutionRecord, admitted: Admitted) -> Awaitable[None]:
        """Store a new execution of this owner under an id that nobody else has, in order with what is written next.

        It may be stored some milliseconds later, together with that. What was written for it fails when it does.
        """

    async def admit_again(
        self, record: ExecutionRecord, admitted: Admitted, ended: ExecutionRecord, *, takes_turn: bool = False
    ) -> int | None:
        """Begin an execution anew that had `ended`, as this owner's, and return the sequence of its last event.

        Its events stay. None when it is not as it had ended any more: another caller was faster. Raises Aborted as
        `admit` does.
        """

    async def after_sequence(self, request_id: str) -> int:
        """Return the last sequence of an earlier run under the id; 0 when the execution ran once."""

    def write(self, write: Write, *, can_wait: bool = False) -> Awaitable[None]:
        """Store what happened; what can wait may be stored some milliseconds later, together with what comes.

        The order is that of the calls, whether anyone waits or not.

        Raises Conflict when another owner has taken the execution over.
        """

    async def get(self, request_id: str) -> ExecutionRecord:
        """Return an execution. Raises NotFound."""

    async def list_executions(
        self, *, limit: int, after: str, session_id: str, state: State | None
    ) -> Page[ExecutionRecord]:
        """Return executions, newest first, without responses; `after` is the token of the page before.

        Raises InvalidRequest for a token that is none.
        """

    async def timeline(self, request_id: str, after: int = 0, limit: int = 0) -> list[Event]:
        """Return the stored events above a sequence, in sequence, as many as `limit` unless that is 0.

        Raises NotFound.
        """

    async def timeline_page(self, request_id: str, after: int, limit: int, max_bytes: int) -> tuple[list[Event], bool]:
        """Return as many of the stored events above a sequence as are within the limits, and whether there are more.

        At least one, where there is one. Raises NotFound.
        """

    async def entries(self, request_id: str) -> list[Entry]:
        """Return what an execution can be taken up from. Raises PreconditionFailed when it cannot be read."""

    async def interrupted(self, mode: Mode) -> list[str]:
        """Return the ids of the interrupted executions of a mode, oldest first."""


class Ownership(Protocol):
    """Which orchestrator runs what, among those that share the storage."""

    async def claim(self, request_id: str) -> bool:
        """Make an interrupted execution this owner's; False when another was faster or it is not interrupted."""

    async def request_cancel(self, request_id: str) -> None:
        """Have the owner of an execution stop it at its next beat."""

    async def beat(self) -> Pulse:
        """Tell that this owner lives, and see who else does."""

    @property
    def write_failure(self) -> str:
        """Why the last write could not be made; empty while they can."""

    async def interrupt(self, owner: str, beat: int) -> bool:
        """Mark what a dead owner ran as interrupted; False when it has beaten since, or others were faster."""

    async def release(self, request_ids: Sequence[str]) -> None:
        """Mark executions of this owner as interrupted: it has given them up."""


class Conversations(Protocol):
    """Conversations and the values kept for them."""

    async def take_turn(self, session_id: str, request_id: str) -> bool:
        """Give an execution its session's turn, until it ends; False while another live one has it."""

    async def history(self, session_id: str, max_bytes: int = 0) -> tuple[int, tuple[Message, ...]]:
        """Return a conversation's newest messages, oldest first, and the position of the first of them.

        As many as have so many bytes, at least one where there is one; 0 is all.
        """

    async def get_session(
        self, session_id: str, limit: int = 0, *, before: int = 0, max_bytes: int = 0
    ) -> SessionRecord:
        """Return a conversation with its newest messages before a position, within the limits; 0 is none.

        Raises NotFound.
        """

    async def session_state(self, session_id: str) -> Mapping[str, str]:
        """Return the values of a session, JSON documents by their keys; none of one that is not there."""

    async def list_sessions(self, *, limit: int, after: str) -> Page[SessionRecord]:
        """Return conversations, last used first; `after` is as in `list_executions`."""

    async def update_state(self, session_id: str, values: Mapping[str, str], removed: Sequence[str]) -> SessionRecord:
        """Set and remove values of a session, which is made when there is none; returns it without its messages.

        Raises InvalidRequest when it would have too many values, or too large ones.
        """

    async def delete_session(self, session_id: str) -> None:
        """Remove a conversation and the executions of it that do not run. Raises NotFound when there are neither."""


class UsageLedger(Protocol):
    """What was used, and what it cost."""

    async def add_usage(self, used: UsageTotal) -> None:
        """Add what was used by work that is no execution."""

    async def usage_totals(
        self, *, session_id: str | None, model: str | None, limit: int, after: str
    ) -> Page[UsageTotal]:
        """Return the totals of a session, of a model, of both or all, by session and model; `after` as above."""


class Journal(ExecutionJournal, Ownership, Conversations, UsageLedger, Protocol):
    """Storage that several orchestrators may share; each owns the executions that it runs.

    What a method returned from is kept. Writes of one execution are stored in the order in which they were given.
    """
