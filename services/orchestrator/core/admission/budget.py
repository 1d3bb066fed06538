"""Budgets of tenants and of their callers: what a period may cost, and how it is spent without asking each time.

Theory of operation. The journal's database has one row for each budget, with what was granted of it. An orchestrator is
granted a part of the budget, larger than it needs at the moment, and keeps it in a purse. Before each inference it
reserves the worst case in the purse; afterwards it settles what was really used. Only an empty purse asks the database
again. What is granted counts as used until it is given back, so neither a number of orchestrators nor a crash can spend
more than the budget: an orchestrator that dies takes the rest of its purse along until the period ends.

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
from services.orchestrator.core.execution.commands import Decide, Infer, Sample
from services.orchestrator.core.model.keys import Account
from services.orchestrator.core.model.request import Hints

DEFAULT_OUTPUT_TOKENS = 2048  # the inference service's limit for a request that sets none
TEMPLATE_TOKENS = 1024  # a chat template adds at most so many to a conversation
MESSAGE_TOKENS = 32  # a chat template adds at most so many to each message and tool
GRANT_FACTOR = 32  # a grant lasts for so many worst cases
MICRO = 1_000_000


class Period(StrEnum):
    """When a budget starts again, in UTC."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    TOTAL = "total"  # never

    def start_of(self, now: datetime) -> datetime:
        """Return when the period of a moment began."""
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
        """Return when the period of a moment ends; None for never."""
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
    """Tokens and money; money in millionths of a USD."""

    tokens: int = 0
    micro_usd: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.micro_usd + other.micro_usd)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.tokens - other.tokens, self.micro_usd - other.micro_usd)

    def times(self, factor: int) -> Amount:
        """Return it several times."""
        return Amount(self.tokens * factor, self.micro_usd * factor)

    def half(self) -> Amount:
        """Return half of it."""
        return Amount(self.tokens // 2, self.micro_usd // 2)

    def covers(self, other: Amount) -> bool:
        """Tell whether neither tokens nor money are less than another's."""
        return self.tokens >= other.tokens and self.micro_usd >= other.micro_usd

    def at_least(self, other: Amount) -> Amount:
        """Return the greater of the tokens and of the money."""
        return Amount(max(self.tokens, other.tokens), max(self.micro_usd, other.micro_usd))

    def at_most(self, other: Amount) -> Amount:
        """Return the lesser of the tokens and of the money."""
        return Amount(min(self.tokens, other.tokens), min(self.micro_usd, other.micro_usd))


NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class Budget:
    """What an account may spend in a period; None is no limit.

    `granted` counts since `period_start`. Times are seconds since 1970; `made_at` tells it from an earlier budget of
    the account, whose grants do not come back to this one.
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
        """What a grant belongs to: this budget, and this period of it."""
        return self.made_at, self.period_start

    def left(self) -> Amount:
        """Return what may still be granted; a large amount where there is no limit."""
        return Amount(_left(self.max_tokens, self.granted.tokens), _left(self.max_micro_usd, self.granted.micro_usd))

    def grant(self, least: Amount) -> Amount | None:
        """Return what is granted to one who needs `least` now; None for too little.

        It is more while there is enough, but no more than half of the rest: others want to spend too.
        """
        left = self.left()
        if not left.covers(least):
            return None
        return least.times(GRANT_FACTOR).at_most(left.half()).at_least(least)


_UNLIMITED = 2**62


def _left(limit: int | None, granted: int) -> int:
    if limit is None:
        return _UNLIMITED
    return limit - granted


class Purse:
    """What an orchestrator holds of one period of an account's budget; `budget` is the identity of both."""

    def __init__(self, budget: tuple[float, float]) -> None:
        self.budget = budget
        self.free = NOTHING
        self.reserved = NOTHING
        self.was_used = False
        self._low = NOTHING

    @property
    def is_low(self) -> bool:
        """Whether it is time to ask for more, so that nobody has to wait for it."""
        return not self.free.covers(self._low)

    def put(self, granted: Amount) -> None:
        """Add what was granted."""
        self.free += granted
        self._low = granted.half()

    def go_without(self) -> None:
        """Ask for no more until something is granted again: the budget is empty."""
        self._low = NOTHING

    def missing(self, amount: Amount) -> Amount:
        """Return what is needed beside the purse to reserve an amount, a debt included."""
        return (amount - self.free).at_least(NOTHING)

    def reserve(self, amount: Amount) -> bool:
        """Set an amount aside; False when the purse has too little."""
        if not self.free.covers(amount):
            return False
        self.free -= amount
        self.reserved += amount
        self.was_used = True
        return True

    def settle(self, amount: Amount, used: Amount) -> None:
        """Put back what of a reserved amount was not used; what was used beyond it is missing later."""
        self.reserved -= amount
        self.free += amount - used

    def take_free(self) -> Amount:
        """Empty the purse of what is not reserved, and return it."""
        free, self.free = self.free, NOTHING
        return free


def worst_case(command: Infer | Sample, hints: Hints, prices: Prices | None, context_window: int) -> Amount:
    """Return the most that an inference can use; `context_window` 0 is unknown.

    A token has at least one byte of text.
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
    """Return the most that decisions can use: each question is a prompt of its own after what they have in common.

    The template ends the user's message and begins the answer after each question. Nothing is decoded.
    """
    common = _prompt_bound(command)
    if context_window:
        common = min(common, context_window)
    texts = [text for question in command.questions for text in (question.ending, *question.labels)]
    prompt = common + sum(len(text.encode()) for text in texts) + 2 * MESSAGE_TOKENS * len(command.questions)
    return amount_of(TokenUsage(prompt_tokens=prompt), prices)


def texts_bound(texts: Sequence[str], prices: Prices | None, query: str = "") -> Amount:
    """Return the most that texts can use which a model reads one by one, each with the query beside it."""
    beside = len(query.encode()) + MESSAGE_TOKENS
    prompt = sum(len(text.encode()) + beside for text in texts)
    return amount_of(TokenUsage(prompt_tokens=prompt), prices)


def judge_bound(text: str, intent: str) -> TokenUsage:
    """Return the most that the judgement of a text can use."""
    prompt = len(text.encode()) + len(intent.encode()) + TEMPLATE_TOKENS
    return TokenUsage(prompt_tokens=prompt, output_tokens=MAX_VERDICT_TOKENS)


def amount_of(usage: TokenUsage, prices: Prices | None) -> Amount:
    """Return what a usage takes of a budget; money is rounded up, and nothing without prices."""
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
