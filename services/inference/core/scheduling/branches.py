"""A request while it is decoded: its ticket, branches, candidates and events.

A ticket is one request in the scheduler. Its candidates are its answers. Candidates that have sampled the same tokens
so far are one branch. Events tell the request's receiver about each change, in order: Prompted, any number of Progress
and Ended, then Finished; or Failed at any time as the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pagantic_common.domain.calls.principal import DEFAULT_TENANT
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import Cancelled, DeadlineExceeded, ErrorCode, Internal, InvalidRequest, Unavailable
from services.inference.core.decoding.images import ImageSpan, run_end
from services.inference.core.decoding.output import Output
from services.inference.core.generation import NO_PREFIXES, FinishReason, PromptPrefixes, TokenLogprob
from services.inference.core.scheduling.cache_owners import CacheOwners, cache_keys
from services.inference.core.scheduling.drafting import Drafter
from services.inference.core.scheduling.stored_blocks import NO_BLOCKS, BlockNames

# Candidates of one request often sample the same tokens at first; later rows are not worth their memory.
_MEMO_DEPTH = 8


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """A prompt of at least one token, and how to continue it.

    Attributes:
        draws: A random stream in [0, 1) for each candidate.
        drafter: Drafts for a single candidate; ignored with several candidates.
        may_draft: Whether a draft model may draft too.
        shared_tokens: Length of the prompt's beginning that all tenants share in the cache. The rest is shared only
            among requests of the same `tenant`.
        kept_tokens: Tokens of an ended candidate that the cache keeps for later requests; None keeps all.
        reports_tokens: Whether progress includes the new tokens, even before they form a whole character.
        said_tokens: The beginning of the output, which has accepted them; `said_text` is reported once they are
            computed.
        blocks: Names of the prompt's blocks of cells that may be stored.
        images: In the order of their positions; at least one token follows the last image.
    """

    tokens: tuple[int, ...]
    output: Output
    draws: tuple[Callable[[], float], ...]
    max_tokens: int
    priority: int = 0
    deadline: Deadline = field(default_factory=Deadline)
    drafter: Drafter | None = None
    may_draft: bool = False
    tenant: str = DEFAULT_TENANT
    shared_tokens: int = 0
    kept_tokens: int | None = None
    reports_tokens: bool = False
    prefixes: PromptPrefixes = NO_PREFIXES
    said_tokens: tuple[int, ...] = ()
    said_text: str = ""
    blocks: BlockNames = NO_BLOCKS
    images: tuple[ImageSpan, ...] = ()

    def keys(self, owners: CacheOwners) -> list[int]:
        """Return the cache keys of the prompt's tokens."""
        owner = owners.number_of(self.tenant)
        shared, own = self.tokens[: self.shared_tokens], self.tokens[self.shared_tokens :]
        keys = [*shared, *cache_keys(own, owner)]
        numbers = owners.numbers_of_images(owner, (image.digest for image in self.images))
        for image, number in zip(self.images, numbers, strict=True):
            keys[image.start : image.end] = cache_keys(range(len(image.embeddings)), number)
        return keys


@dataclass(slots=True)
class Candidate:
    """One of a request's answers."""

    index: int
    draw: Callable[[], float]
    is_cancelled: bool = False


class Branch:
    """Candidates that have sampled the same tokens so far; `tokens` from `computed` on are pending.

    `keys` are the cache keys of `tokens`. A branch with a `sequence_id` has a seat; `is_deferred` marks a prompt that
    waits for another prompt to compute the same tokens, `is_set_aside` a branch that lost its place to another tenant.
    """

    __slots__ = (
        "candidates",
        "computed",
        "drafter",
        "is_deferred",
        "is_set_aside",
        "keys",
        "last_served",
        "output",
        "sequence_id",
        "ticket",
        "tokens",
    )

    def __init__(
        self, ticket: Ticket, tokens: list[int], keys: list[int], output: Output, candidates: list[Candidate]
    ) -> None:
        self.ticket = ticket
        self.tokens = tokens
        self.keys = keys
        self.output = output
        self.candidates = candidates
        self.computed = 0
        self.sequence_id: int | None = None
        self.last_served = 0
        self.is_deferred = False
        self.is_set_aside = False
        self.drafter: Drafter | None = None

    @property
    def pending(self) -> int:
        """Tokens to compute before the next logits; 0 if the memo has the row after the last token."""
        return len(self.tokens) - self.computed

    @property
    def pending_run(self) -> int:
        """Pending tokens up to the next image, or to the end of the image that they begin."""
        images = self.ticket.request.images
        if not images:
            return self.pending
        return run_end(images, self.computed, len(self.tokens)) - self.computed

    @property
    def is_likely_to_recur(self) -> bool:
        """Whether other candidates or requests are likely to sample its tokens; only then the memo keeps its row."""
        if self.ticket.request.kept_tokens is not None:
            return False
        return not self.ticket.is_prompted or (self.ticket.is_shared and self.output.output_tokens < _MEMO_DEPTH)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add sampled or forced tokens."""
        self.keys.extend(cache_keys(tokens, self.ticket.owner))
        self.tokens.extend(tokens)

    @property
    def rank(self) -> tuple[int, int, int]:
        """The order among the branches of a tenant; the first in rank keeps its cells longest."""
        return (*self.ticket.rank[:2], self.candidates[0].index)


class Ticket:
    """One request in the scheduler.

    Args:
        number: The number of the request; later requests have higher numbers.
        request: The request.
        owners: Gives owner numbers to tenants and images.
        weight: The tenant's share of turns.

    Attributes:
        owner: The owner number of its tenant.
        keys: The cache keys of the prompt's tokens.
        is_shared: Whether several candidates may sample the same tokens.
    """

    def __init__(self, number: int, request: DecodeRequest, owners: CacheOwners, weight: float) -> None:
        self.number = number
        self.request = request
        self.owner = owners.number_of(request.tenant)
        self.keys = request.keys(owners)
        self.weight = weight
        self.candidates = [Candidate(index, draw) for index, draw in enumerate(request.draws)]
        self.is_shared = len(self.candidates) > 1
        self.unfinished = len(self.candidates)
        self.is_cancelled = False
        self.is_prompted = False
        self.seated_s = 0.0
        self.expected_prompt_tokens = len(request.tokens) + len(request.said_tokens)
        self.prompt_tokens_computed = 0
        self.rows = 0
        self.output_tokens = 0
        self.longest_output = 0

    @property
    def rank(self) -> tuple[int, int, int]:
        """The rank of its first branch."""
        return (-self.request.priority, self.number, 0)

    def root(self) -> Branch:
        """Return the first branch, with all candidates."""
        request = self.request
        branch = Branch(self, list(request.tokens), list(self.keys), request.output, list(self.candidates))
        branch.extend(request.said_tokens)
        if len(self.candidates) == 1:
            branch.drafter = self.request.drafter
        return branch


@dataclass(frozen=True, slots=True)
class Prompted:
    """The prompt of a request was processed; the wait for the first step had ended at `seated_s`, monotonic seconds."""

    number: int
    cached_prompt_tokens: int
    seated_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Some candidates of a request have the same new text; each has `output_tokens` tokens now."""

    number: int
    candidates: tuple[int, ...]
    text: str
    output_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """A candidate ended."""

    number: int
    candidate: int
    finish_reason: FinishReason
    output_tokens: int
    constraint_satisfied: bool
    matched_stop: str | int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """All candidates of a request ended; `rows` counts the tokens computed for it."""

    number: int
    output_tokens: int
    longest_output: int
    rows: int


class FailureCause(Enum):
    """Why a request failed."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ENGINE = "engine"
    BROKEN = "broken"
    CONSTRAINT = "constraint"
    UNEXPECTED = "unexpected"


@dataclass(frozen=True, slots=True)
class Failed:
    """A request ended before its candidates; `error` is the exception of an UNEXPECTED failure."""

    number: int
    cause: FailureCause
    reason: str = ""
    error: BaseException | None = None

    def to_error(self) -> Exception:
        """Return the error for the request's caller."""
        match self.cause:
            case FailureCause.CANCELLED:
                return Cancelled("the caller cancelled or went away")
            case FailureCause.DEADLINE:
                return DeadlineExceeded("the deadline passed while decoding")
            case FailureCause.ENGINE:
                return Internal(self.reason, code=ErrorCode.INFERENCE_ENGINE_ERROR)
            case FailureCause.BROKEN:
                return Unavailable(f"the engine is broken: {self.reason}", code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE)
            case FailureCause.CONSTRAINT:
                return InvalidRequest(self.reason, code=ErrorCode.CONSTRAINT_TOO_COMPLEX)
            case FailureCause.UNEXPECTED:
                unexpected = RuntimeError("decoding of one request failed")
                unexpected.__cause__ = self.error
                return unexpected


SchedulerEvent = Prompted | Progress | Ended | Finished | Failed
