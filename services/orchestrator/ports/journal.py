"""The journal: storage for executions, their events, conversations and usage.

Every key that a caller can name contains the tenant, so an object of another tenant is reported as NotFound. Each
owner is an orchestrator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from pagantic_common.domain.calls.principal import DEFAULT_TENANT
from pagantic_common.domain.errors import Failure
from pagantic_common.domain.messages import Message
from services.orchestrator.core.execution.events import Event
from services.orchestrator.core.execution.replay import Admitted, Entry
from services.orchestrator.core.model.keys import ExecutionKey, SessionKey
from services.orchestrator.core.model.request import KeptRequest, Mode
from services.orchestrator.core.model.response import Response
from services.orchestrator.core.turn.run import State
from services.orchestrator.ports.changes import Changes
from services.orchestrator.ports.page import Page
from services.orchestrator.ports.storage import StorageUse
from services.orchestrator.ports.waits import WaitStore

MAX_STATE_VALUES = 100  # maximum number of values per session
MAX_LISTED_CHARS = 1024
MAX_STATE_BYTES = 256 * 1024  # total size of a session's values, as UTF-8


class Durability(StrEnum):
    """The failure that a completed write survives: the end of this process, or also a power failure."""

    PROCESS = "process"
    POWER = "power"


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """The record of an execution.

    `response` is None until the execution has ended. `kept` is None if the request is not kept. Lists omit responses
    and kept requests. Lists by metadata include the metadata. `wakes_at` is set while the execution is parked, and
    `parked_s` is the time that it was parked before. `key` consists of the tenant and the request ID.
    """

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
    tenant: str = DEFAULT_TENANT
    is_background: bool = False
    kept: KeptRequest | None = None
    wakes_at: datetime | None = None
    parked_s: float = 0.0
    key: ExecutionKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", ExecutionKey(self.tenant, self.request_id))

    @property
    def session_key(self) -> SessionKey:
        """The key of the execution's conversation."""
        return SessionKey(self.tenant, self.session_id)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A stored conversation. Lists omit messages and include at most one value. Values are JSON documents."""

    session_id: str
    messages: tuple[Message, ...]
    message_count: int
    created_at: datetime
    updated_at: datetime
    state: Mapping[str, str] = field(default_factory=dict)
    first_position: int = 0


class UsageKey(StrEnum):
    """A property by which usage is summed. The values are the names of its fields in UsageTotal."""

    SESSION = "session_id"
    MODEL = "model"
    SUBJECT = "subject"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """The usage and cost of one subject and session with one model, over all ended executions of any age.

    In a sum over several sessions, models or subjects, the corresponding field is empty.
    """

    session_id: str
    model: str
    requests: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    tenant: str = DEFAULT_TENANT
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Write:
    """An atomic write: the record of an execution, and its new events and entries.

    `entries` are numbered from `position`. `turn` contains the conversation's new messages, and `used` the cost. Both
    require a record with a response.
    """

    record: ExecutionRecord
    events: tuple[Event, ...] = ()
    entries: tuple[Entry, ...] = ()
    position: int = 0
    turn: tuple[Message, ...] = ()
    used: UsageTotal | None = None


@dataclass(frozen=True, slots=True)
class Pulse:
    """The result of a heartbeat: the count of every owner, and the executions that this owner must stop."""

    beats: Mapping[str, int]
    to_cancel: tuple[ExecutionKey, ...] = ()


class ExecutionJournal(Changes, Protocol):
    """Stores executions, their events, and the entries from which executions can be resumed."""

    async def admit(
        self, record: ExecutionRecord, admitted: Admitted, *, takes_turn: bool = False
    ) -> ExecutionRecord | None:
        """Store a new execution of this owner and return None, or return the existing execution with the ID.

        Raises Aborted, and stores nothing, if `takes_turn` is set and another execution has the session's turn.
        """

    def admit_new(self, record: ExecutionRecord, admitted: Admitted) -> Awaitable[None]:
        """Store a new execution of this owner under a new ID, before its later writes.

        The write may be delayed by some milliseconds to share a transaction. If it fails, the execution's later writes
        fail.
        """

    async def admit_again(
        self, record: ExecutionRecord, admitted: Admitted, ended: ExecutionRecord, *, takes_turn: bool = False
    ) -> int | None:
        """Restart an execution that had `ended`, under this owner, and return the sequence of its last event.

        Its events are kept. Returns None if another caller has already restarted the execution. Raises Aborted under
        the same conditions as `admit`.
        """

    async def after_sequence(self, key: ExecutionKey) -> int:
        """Return the last sequence of an earlier run under the ID; 0 if there was no earlier run."""

    def write(self, write: Write, *, can_wait: bool = False) -> Awaitable[None]:
        """Store a write. With `can_wait`, the write may be delayed by some milliseconds to share a transaction.

        Writes are stored in the order of the calls. Raises Conflict if another owner has taken over the execution.
        """

    async def get(self, key: ExecutionKey) -> ExecutionRecord:
        """Return an execution. Raises NotFound if it does not exist."""

    async def list_executions(
        self,
        *,
        tenant: str,
        limit: int,
        after: str,
        session_id: str,
        state: State | None,
        metadata: Mapping[str, str],
        mode: Mode | None = None,
        max_bytes: int = 0,
    ) -> Page[ExecutionRecord]:
        """Return a tenant's executions, newest first. `after` is the token from the previous page.

        If `metadata` is given, only executions with all of it are returned. In that case a page may be short, because
        many other executions were scanned or its metadata has `max_bytes`; 0 means no limit. Raises InvalidRequest if
        the token is invalid.
        """

    async def update_metadata(
        self, key: ExecutionKey, values: Mapping[str, str], removed: Sequence[str]
    ) -> ExecutionRecord:
        """Set and remove metadata of an execution, and return its record.

        Raises NotFound if the execution does not exist, PreconditionFailed if its request is not kept, and
        InvalidRequest if there is too much metadata.
        """

    async def delete_execution(self, key: ExecutionKey) -> None:
        """Delete an execution with all its data except its usage.

        Parked executions can be deleted, too. Raises NotFound if the execution does not exist, and PreconditionFailed
        if it is running.
        """

    async def timeline(self, key: ExecutionKey, after: int = 0, limit: int = 0) -> list[Event]:
        """Return the stored events after a sequence, in order. A `limit` of 0 means no limit.

        Raises NotFound if the execution does not exist.
        """

    async def timeline_page(
        self, key: ExecutionKey, after: int, limit: int, max_bytes: int
    ) -> tuple[list[Event], bool]:
        """Return the stored events after a sequence within the limits, at least one event, and whether there are more.

        Raises NotFound if the execution does not exist.
        """

    async def entries(self, key: ExecutionKey) -> list[Entry]:
        """Return the entries for resuming or replaying an execution.

        The entries of an execution without a kept request are deleted when it ends. Raises PreconditionFailed if the
        entries are unreadable.
        """

    async def interrupted(self, *, with_plans: bool) -> list[ExecutionKey]:
        """Return the keys of unattended interrupted executions of all tenants, oldest first.

        These are the background executions and, if `with_plans` is set, plans.
        """

    async def due(self, limit: int, *, without: Collection[str] = ()) -> list[ExecutionKey]:
        """Return the keys of parked executions whose time has come, earliest first, except those of some tenants."""


class Ownership(Protocol):
    """Manages the ownership of executions by the orchestrators that share the storage."""

    async def claim(self, key: ExecutionKey) -> bool:
        """Make this owner the owner of an interrupted or parked execution, or return False if another was faster."""

    async def park(self, key: ExecutionKey, wakes_at: datetime, wait_ids: Collection[str]) -> bool:
        """Park an execution of this owner that has only these waits. Its earlier writes are already stored.

        Returns False if one of the waits has ended or can end by a kept signal, or if the execution is to be cancelled.
        """

    async def request_cancel(self, key: ExecutionKey) -> None:
        """Request that an execution's owner stop it at the owner's next heartbeat."""

    async def beat(self) -> Pulse:
        """Increment this owner's heartbeat count, and read the counts of the other owners.

        Raises PreconditionFailed if another process is now this owner.
        """

    @property
    def write_failure(self) -> str:
        """The reason that the last write failed, or an empty string if it succeeded."""

    async def interrupt(self, owner: str, beat: int) -> bool:
        """Interrupt the executions of a dead owner.

        Returns False if the owner's heartbeat count has changed, or if another owner has already interrupted them.
        """

    async def release(self, keys: Sequence[ExecutionKey]) -> None:
        """Mark executions of this owner as interrupted."""


class Conversations(Changes, Protocol):
    """Stores conversations, their values, and the executions that have their turns."""

    async def take_turn(self, key: SessionKey, request_id: str) -> bool:
        """Reserve a session's turn for an execution until it ends.

        Returns False while another execution has the turn and is running, or was interrupted so recently that it may
        still be resumed. Raises PreconditionFailed (ORCHESTRATION_TURN_WAITING) while the other execution is parked.
        """

    async def has_turn(self, key: SessionKey, request_id: str) -> bool:
        """Return whether an execution has its session's turn."""

    async def history(self, key: SessionKey, max_bytes: int = 0, *, limit: int = 0) -> tuple[int, tuple[Message, ...]]:
        """Return a conversation's newest messages, oldest first, and the position of the first returned message.

        Returns at most `limit` messages with at most `max_bytes`, but at least one message. 0 means no limit.
        """

    async def get_session(
        self, key: SessionKey, limit: int = 0, *, before: int = 0, max_bytes: int = 0
    ) -> SessionRecord:
        """Return a conversation with its newest messages before a position, within the limits.

        A limit of 0 means no limit. Raises NotFound if the conversation does not exist.
        """

    async def session_state(self, key: SessionKey) -> Mapping[str, str]:
        """Return a session's values as JSON documents by key, or an empty mapping if the session is unknown."""

    async def list_sessions(self, *, tenant: str, limit: int, after: str, state_key: str = "") -> Page[SessionRecord]:
        """Return a tenant's conversations, most recently used first. `after` works as in `list_executions`.

        The state of each conversation contains the value of the key, unless the value is longer than MAX_LISTED_CHARS.
        """

    async def update_state(self, key: SessionKey, values: Mapping[str, str], removed: Sequence[str]) -> SessionRecord:
        """Set and remove values of a session, and return it without its messages. Creates the session if needed.

        Raises InvalidRequest if there are too many values or too many bytes.
        """

    async def append_messages(self, key: SessionKey, messages: Sequence[Message]) -> SessionRecord:
        """Append messages to a conversation, and return it without its messages. Creates the conversation if needed.

        Raises Aborted while an execution has the session's turn.
        """

    async def replace_messages(self, key: SessionKey, messages: Mapping[int, Message]) -> SessionRecord:
        """Replace messages of a conversation by their positions, and return the conversation without its messages.

        The next turn renews a summary that covers a replaced message. Raises InvalidRequest, and replaces nothing, if a
        position does not exist, and Aborted while an execution has the session's turn.
        """

    async def delete_session(self, key: SessionKey) -> None:
        """Delete a conversation and its executions that are not running, including parked executions.

        Raises NotFound if there is neither a conversation nor an execution.
        """


class UsageLedger(Protocol):
    """Stores the usage and cost of work by tenant, session, model and subject."""

    async def add_usage(self, used: UsageTotal) -> None:
        """Add the usage of work outside executions."""

    async def usage_totals(
        self,
        *,
        tenant: str,
        limit: int,
        after: str,
        session_id: str | None = None,
        model: str | None = None,
        subject: str | None = None,
        group_by: Collection[UsageKey] = frozenset(),
    ) -> Page[UsageTotal]:
        """Return a tenant's totals, filtered by the given values, by session, model and subject, or by `group_by`.

        TENANT alone yields exactly one total, even without usage. `after` is the token from the previous page. Raises
        InvalidRequest if the previous page had other keys.
        """


class Journal(ExecutionJournal, Ownership, Conversations, UsageLedger, WaitStore, StorageUse, Protocol):
    """Storage that several orchestrators may share. Each orchestrator owns the executions that it runs.

    A change is durable once its method has returned. The writes of one execution are stored in the order of the calls.
    """
