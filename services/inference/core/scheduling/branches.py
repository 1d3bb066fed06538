"""Defines the state of a request while it is decoded: its ticket, branches, candidates and events.

A ticket is one request in the scheduler. Its candidates are its answers. Candidates that have sampled the same tokens
so far are one branch. Events report each change to the request's receiver in order. Prompted comes first, then any
number of Progress and Ended events, then Finished. Failed may come at any time, as the last event.
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

# Candidates of a request often sample the same tokens at first. Later rows are not worth their memory.
_MEMO_DEPTH = 8


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """A prompt of at least one token, and the rules for its continuation.

    Attributes:
        draws: A random stream in [0, 1) for each candidate.
        drafter: Makes drafts for a single candidate; ignored if there are several candidates.
        may_draft: Whether a draft model may also draft.
        shared_tokens: The length of the prompt's prefix that all tenants share in the cache. The rest is shared only
            among requests of the same `tenant`.
        kept_tokens: The number of tokens of an ended candidate that the cache keeps for later requests. If None, the
            cache keeps all tokens.
        reports_tokens: Whether progress includes the new tokens, even before they form a whole character.
        said_tokens: The tokens that the output begins with and has already accepted. `said_text` is reported once they
            are computed.
        blocks: The names of the prompt's blocks of cells that may be stored.
        images: The images in the order of their positions. At least one token follows the last image.
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
    """A candidate answer to a request, with the random draws that select its tokens."""

    index: int
    draw: Callable[[], float]
    is_cancelled: bool = False


class Branch:
    """Candidates that have sampled the same tokens so far. The tokens from index `computed` on are pending.

    `keys` are the cache keys of `tokens`. A branch with a `sequence_id` has a seat. `is_deferred` marks a prompt that
    waits for another prompt to compute the same tokens. `is_set_aside` marks a branch that lost its seat to another
    tenant.
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
        """The number of tokens to compute before the next logits.

        It is 0 if the memo has the row after the last token.
        """
        return len(self.tokens) - self.computed

    @property
    def pending_run(self) -> int:
        """The number of pending tokens up to the next image, or to the end of the image that they begin."""
        images = self.ticket.request.images
        if not images:
            return self.pending
        return run_end(images, self.computed, len(self.tokens)) - self.computed

    @property
    def is_likely_to_recur(self) -> bool:
        """Whether other candidates or requests are likely to sample the same tokens. If not, the memo keeps no row."""
        if self.ticket.request.kept_tokens is not None:
            return False
        return not self.ticket.is_prompted or (self.ticket.is_shared and self.output.output_tokens < _MEMO_DEPTH)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add sampled or forced tokens."""
        self.keys.extend(cache_keys(tokens, self.ticket.owner))
        self.tokens.extend(tokens)

    @property
    def rank(self) -> tuple[int, int, int]:
        """The branch's rank among the branches of a tenant. The first branch in rank keeps its cells longest."""
        return (*self.ticket.rank[:2], self.candidates[0].index)


class Ticket:
    """A request in the scheduler.

    Args:
        number: The number of the request. Later requests have higher numbers.
        request: The request.
        owners: Assigns owner numbers to tenants and images.
        weight: The tenant's share of turns.

    Attributes:
        owner: The owner number of the request's tenant.
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
        """The rank of the request's first branch."""
        return (-self.request.priority, self.number, 0)

    def root(self) -> Branch:
        """Return the first branch, which contains all candidates."""
        request = self.request
        branch = Branch(self, list(request.tokens), list(self.keys), request.output, list(self.candidates))
        branch.extend(request.said_tokens)
        if len(self.candidates) == 1:
            branch.drafter = self.request.drafter
        return branch


@dataclass(frozen=True, slots=True)
class Prompted:
    """Reports that the prompt of a request was processed.

    The wait for the first step ended at `seated_s`, in monotonic seconds.
    """

    number: int
    cached_prompt_tokens: int
    seated_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Reports new text that some candidates of a request share. Each of them now has `output_tokens` tokens."""

    number: int
    candidates: tuple[int, ...]
    text: str
    output_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """Reports that a candidate ended."""

    number: int
    candidate: int
    finish_reason: FinishReason
    output_tokens: int
    constraint_satisfied: bool
    matched_stop: str | int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """Reports that all candidates of a request ended. `rows` is the number of tokens computed for the request."""

    number: int
    output_tokens: int
    longest_output: int
    rows: int


class FailureCause(Enum):
    """The reason for the failure of a request."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ENGINE = "engine"
    BROKEN = "broken"
    CONSTRAINT = "constraint"
    UNEXPECTED = "unexpected"


@dataclass(frozen=True, slots=True)
class Failed:
    """Reports that a request ended before its candidates. `error` is the exception of an UNEXPECTED failure."""

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
