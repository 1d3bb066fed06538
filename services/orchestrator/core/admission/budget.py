"""Limits the spending of tenants and of their callers per period, without a database query per inference.

Theory of operation. The journal's database has a row for each budget, with the amount granted from it. An orchestrator
gets a grant larger than it currently needs, and keeps the unspent amount in memory, in a `Purse`. Before each inference
it reserves the worst-case amount in the purse, and afterwards it settles the actual usage. The database is queried
again only when the purse is too low. A grant counts as used until it is returned, so neither several orchestrators nor
a crash can overspend the budget. If an orchestrator crashes, the rest of its purse is lost until the period ends.

Source: the escrow method, P. O'Neil, "The Escrow Transactional Method", ACM TODS 1986.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import ceil

from pagantic_common.domain import images
from pagantic_common.domain.defaults import MAX_VERDICT_TOKENS
from pagantic_common.domain.messages import count_images
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.cost import Prices, cost_usd
from services.orchestrator.core.model.keys import Account
from services.orchestrator.core.model.request import Hints
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.deciding import Decide
from services.orchestrator.core.turn.voting import Sample

DEFAULT_OUTPUT_TOKENS = 2048  # default limit of the inference service
TEMPLATE_TOKENS = 1024  # maximum number of tokens that a chat template adds to a conversation
MESSAGE_TOKENS = 32  # maximum number of tokens that a chat template adds to each message and tool
GRANT_FACTOR = 32  # number of worst-case inferences that a grant covers
MICRO = 1_000_000


class Period(StrEnum):
    """The period of a budget, in UTC. The budget starts again in each new period."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    TOTAL = "total"  # The budget never starts again.

    def start_of(self, now: datetime) -> datetime:
        """Return the start of the period that contains `now`."""
        minute = now.astimezone(UTC).replace(second=0, microsecond=0)
        day = minute.replace(hour=0, minute=0)
        match self:
            case Period.MINUTE:
                return minute
            case Period.HOUR:
                return minute.replace(minute=0)
            case Period.DAY:
                return day
            case Period.MONTH:
                return day.replace(day=1)
            case Period.TOTAL:
                return datetime.fromtimestamp(0, UTC)

    def end_of(self, now: datetime) -> datetime | None:
        """Return the end of the period that contains `now`, or None if the period never ends."""
        start = self.start_of(now)
        match self:
            case Period.MINUTE:
                return start + timedelta(minutes=1)
            case Period.HOUR:
                return start + timedelta(hours=1)
            case Period.DAY:
                return start + timedelta(days=1)
            case Period.MONTH:
                return start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
            case Period.TOTAL:
                return None


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of tokens and of money, with the money in millionths of a USD."""

    tokens: int = 0
    micro_usd: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.micro_usd + other.micro_usd)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.tokens - other.tokens, self.micro_usd - other.micro_usd)

    def times(self, factor: int) -> Amount:
        """Return the amount multiplied by a factor."""
        return Amount(self.tokens * factor, self.micro_usd * factor)

    def half(self) -> Amount:
        """Return half of the amount, rounded down."""
        return Amount(self.tokens // 2, self.micro_usd // 2)

    def covers(self, other: Amount) -> bool:
        """Return whether both the tokens and the cost are at least as large as in the other amount."""
        return self.tokens >= other.tokens and self.micro_usd >= other.micro_usd

    def at_least(self, other: Amount) -> Amount:
        """Return the larger token count and the larger cost of the two amounts."""
        return Amount(max(self.tokens, other.tokens), max(self.micro_usd, other.micro_usd))

    def at_most(self, other: Amount) -> Amount:
        """Return the smaller token count and the smaller cost of the two amounts."""
        return Amount(min(self.tokens, other.tokens), min(self.micro_usd, other.micro_usd))


NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class Budget:
    """The amount that an account may spend in a period. A limit of None means no limit.

    `granted` is the amount granted since `period_start`. Times are in seconds since 1970. `made_at` distinguishes this
    budget from an earlier budget of the account, so that grants from the earlier budget are not returned to it.
    """

    account: Account
    period: Period
    max_tokens: int | None
    max_micro_usd: int | None
    period_start: float = 0.0
    granted: Amount = NOTHING
    made_at: float = 0.0

    @property
    def identity(self) -> tuple[float, float]:
        """The identity of this budget in its current period. Each grant belongs to an identity."""
        return self.made_at, self.period_start

    def left(self) -> Amount:
        """Return the amount that may still be granted, or a very large amount if there is no limit."""
        return Amount(_left(self.max_tokens, self.granted.tokens), _left(self.max_micro_usd, self.granted.micro_usd))

    def grant(self, least: Amount) -> Amount | None:
        """Return a grant that covers `least`, or None if too little is left.

        If possible, the grant is larger than `least`, but at most half of the remaining amount, so that other
        orchestrators can get grants too.
        """
        remaining = self.left()
        if not remaining.covers(least):
            return None
        return least.times(GRANT_FACTOR).at_most(remaining.half()).at_least(least)


_UNLIMITED = 2**62


def _left(limit: int | None, granted: int) -> int:
    if limit is None:
        return _UNLIMITED
    return limit - granted


class Purse:
    """An orchestrator's grants from one period of an account's budget.

    `budget` identifies the budget and the period.
    """

    def __init__(self, budget: tuple[float, float]) -> None:
        self.budget = budget
        self.free = NOTHING
        self.reserved = NOTHING
        self.was_used = False
        self._low = NOTHING

    @property
    def is_low(self) -> bool:
        """Whether to request a new grant now, so that inferences do not have to wait for a grant."""
        return not self.free.covers(self._low)

    def put(self, granted: Amount) -> None:
        """Add a grant to the purse."""
        self.free += granted
        self._low = granted.half()

    def go_without(self) -> None:
        """Stop requesting grants until the next grant is added, because the budget is empty."""
        self._low = NOTHING

    def missing(self, amount: Amount) -> Amount:
        """Return the amount that the purse lacks for a reservation of `amount`, including any debt."""
        return (amount - self.free).at_least(NOTHING)

    def reserve(self, amount: Amount) -> bool:
        """Reserve an amount and return True, or return False if the purse has too little."""
        if not self.free.covers(amount):
            return False
        self.free -= amount
        self.reserved += amount
        self.was_used = True
        return True

    def settle(self, amount: Amount, used: Amount) -> None:
        """Put back the unused part of a reserved amount. Excess usage becomes a debt."""
        self.reserved -= amount
        self.free += amount - used

    def take_free(self) -> Amount:
        """Take the unreserved amount out of the purse and return it."""
        free, self.free = self.free, NOTHING
        return free


def worst_case(command: Infer | Sample, hints: Hints, prices: Prices | None, context_window: int) -> Amount:
    """Return an upper bound for the amount that an inference can use.

    Each byte of text counts as a token, because a token has at least one byte. A `context_window` of 0 means that the
    window is unknown.
    """
    prompt, output, candidates = _prompt_bound(command), hints.max_tokens or DEFAULT_OUTPUT_TOKENS, 1
    match command:
        case Infer():
            output = command.max_tokens or output
        case Sample():
            candidates = command.voting.n
    if context_window:
        prompt, output = min(prompt, context_window), min(output, context_window)
    return amount_of(TokenUsage(prompt_tokens=prompt, output_tokens=candidates * output), prices)


def decision_bound(command: Decide, prices: Prices | None, context_window: int) -> Amount:
    """Return an upper bound for the amount that decisions can use.

    Each question is a separate prompt after the common prefix. After each question, the template ends the user's
    message and begins the answer. Nothing is decoded.
    """
    common = _prompt_bound(command)
    if context_window:
        common = min(common, context_window)
    texts = [text for question in command.questions for text in (question.ending, *question.labels)]
    prompt = common + sum(len(text.encode()) for text in texts) + 2 * MESSAGE_TOKENS * len(command.questions)
    return amount_of(TokenUsage(prompt_tokens=prompt), prices)


def texts_bound(texts: Sequence[str], prices: Prices | None, query: str = "") -> Amount:
    """Return an upper bound for the amount used if a model reads each text separately, together with the query."""
    beside = len(query.encode()) + MESSAGE_TOKENS
    prompt = sum(len(text.encode()) + beside for text in texts)
    return amount_of(TokenUsage(prompt_tokens=prompt), prices)


def judge_bound(text: str, intent: str) -> TokenUsage:
    """Return an upper bound for the token usage of judging text."""
    prompt = len(text.encode()) + len(intent.encode()) + TEMPLATE_TOKENS
    return TokenUsage(prompt_tokens=prompt, output_tokens=MAX_VERDICT_TOKENS)


def amount_of(usage: TokenUsage, prices: Prices | None) -> Amount:
    """Return the amount that a usage takes from a budget.

    The cost is rounded up. Without prices it is 0.
    """
    cost = cost_usd(usage, prices) or 0.0
    return Amount(usage.prompt_tokens + usage.output_tokens, ceil(cost * MICRO))


def _prompt_bound(command: Infer | Sample | Decide) -> int:
    texts = [text for message in command.messages for text in (message.content, message.reasoning)]
    texts += [call.arguments_json + call.name for message in command.messages for call in message.tool_calls]
    count = len(command.messages)
    if isinstance(command, Infer):
        texts += [tool.name + tool.description + tool.parameters_json for tool in command.tools]
        texts.append(command.text_prompt)
        count += len(command.tools)
    seen = images.MOST_TOKENS * count_images(command.messages)
    return sum(len(text.encode()) for text in texts) + seen + MESSAGE_TOKENS * count + TEMPLATE_TOKENS
