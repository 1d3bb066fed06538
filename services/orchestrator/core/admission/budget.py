"""Budgets of tenants and of their callers: limits per period, spent without a database query for each inference.

Theory of operation. The journal's database has a row for each budget, with the amount granted from it. An orchestrator
gets a grant larger than its present need, and keeps it in a purse. Before each inference it reserves the worst case in
the purse; afterwards it settles the actual usage. Only an empty purse queries the database again. A grant counts as
used until it is given back, so neither several orchestrators nor a crash can overspend the budget: if an orchestrator
dies, the rest of its purse is lost until the period ends.

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

DEFAULT_OUTPUT_TOKENS = 2048  # the inference service's default limit
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
        """Return the end of the period that contains a moment; None if it never ends."""
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
        """Return whether both the tokens and the cost are at least those of another amount."""
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
    """The amount that an account may spend in a period; None is unlimited.

    `granted` counts since `period_start`. Times are seconds since 1970; `made_at` distinguishes this budget from an
    earlier budget of the account, so that grants of the earlier budget are not given back to this budget.
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
        """The identity of this budget and period, to which a grant belongs."""
        return self.made_at, self.period_start

    def left(self) -> Amount:
        """Return the amount that may still be granted; a very large amount without a limit."""
        return Amount(_left(self.max_tokens, self.granted.tokens), _left(self.max_micro_usd, self.granted.micro_usd))

    def grant(self, least: Amount) -> Amount | None:
        """Return a grant that covers `least`; None if too little is left.

        The grant is larger than `least` if possible, but at most half of the rest, to leave some for other
        orchestrators.
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
    """An orchestrator's grants from one period of an account's budget; `budget` identifies the budget and period."""

    def __init__(self, budget: tuple[float, float]) -> None:
        self.budget = budget
        self.free = NOTHING
        self.reserved = NOTHING
        self.was_used = False
        self._low = NOTHING

    @property
    def is_low(self) -> bool:
        """Whether a new grant should be requested now, so that inferences do not have to wait for it."""
        return not self.free.covers(self._low)

    def put(self, granted: Amount) -> None:
        """Add a grant."""
        self.free += granted
        self._low = granted.half()

    def go_without(self) -> None:
        """Ask for no more until something is granted again: the budget is empty."""
        self._low = NOTHING

    def missing(self, amount: Amount) -> Amount:
        """Return the amount that the purse lacks to reserve an amount, including a debt."""
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
        """Put back the unused part of a reserved amount; usage beyond it becomes a debt."""
        self.reserved -= amount
        self.free += amount - used

    def take_free(self) -> Amount:
        """Take the unreserved amount out of the purse and return it."""
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
    """Return the most that decisions can use: each question is a separate prompt after the common prefix.

    The template ends the user's message and begins the answer after each question. Nothing is decoded.
    """
    common = _prompt_bound(command)
    if context_window:
        common = min(common, context_window)
    texts = [text for question in command.questions for text in (question.ending, *question.labels)]
    prompt = common + sum(len(text.encode()) for text in texts) + 2 * MESSAGE_TOKENS * len(command.questions)
    return amount_of(TokenUsage(prompt_tokens=prompt), prices)


def texts_bound(texts: Sequence[str], prices: Prices | None, query: str = "") -> Amount:
    """Return the most that texts can use if a model reads them one by one, each with the query."""
    beside = len(query.encode()) + MESSAGE_TOKENS
    prompt = sum(len(text.encode()) + beside for text in texts)
    return amount_of(TokenUsage(prompt_tokens=prompt), prices)


def judge_bound(text: str, intent: str) -> TokenUsage:
    """Return the most that the judgement of a text can use."""
    prompt = len(text.encode()) + len(intent.encode()) + TEMPLATE_TOKENS
    return TokenUsage(prompt_tokens=prompt, output_tokens=MAX_VERDICT_TOKENS)


def amount_of(usage: TokenUsage, prices: Prices | None) -> Amount:
    """Return the amount that a usage takes from a budget; cost is rounded up, and 0 without prices."""
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
