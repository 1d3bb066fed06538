"""What a budget grants, what a purse holds, and the most that an inference can use."""

from datetime import UTC, datetime

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pagantic_common.domain.messages import Message, Role, ToolChoice, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.admission.budget import (
    DEFAULT_OUTPUT_TOKENS,
    GRANT_FACTOR,
    MESSAGE_TOKENS,
    NOTHING,
    TEMPLATE_TOKENS,
    Amount,
    Budget,
    Period,
    Purse,
    amount_of,
    worst_case,
)
from services.orchestrator.core.cost import Prices
from services.orchestrator.core.model.keys import Account
from services.orchestrator.core.model.request import Hints
from services.orchestrator.core.model.voting import Voting
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.voting import Sample
from tests.support.examples import examples

PRICES = Prices(prompt_usd=1.0, cached_prompt_usd=0.1, output_usd=4.0)


def moment(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("period", "now", "start", "end"),
    [
        (Period.MINUTE, "2026-02-28T23:59:59", "2026-02-28T23:59:00", "2026-03-01T00:00:00"),
        (Period.HOUR, "2026-12-31T23:59:59", "2026-12-31T23:00:00", "2027-01-01T00:00:00"),
        (Period.DAY, "2026-02-28T23:59:59", "2026-02-28", "2026-03-01"),
        (Period.DAY, "2026-03-01T00:00:00", "2026-03-01", "2026-03-02"),
        (Period.MONTH, "2026-12-31T12:00:00", "2026-12-01", "2027-01-01"),
        (Period.MONTH, "2028-02-29T12:00:00", "2028-02-01", "2028-03-01"),
        (Period.TOTAL, "2026-02-28T23:59:59", "1970-01-01", None),
    ],
)
def test_a_period_begins_and_ends_in_utc(period, now, start, end):
    assert period.start_of(moment(now)) == moment(start)
    assert period.end_of(moment(now)) == (end and moment(end))


def infer(text="hello", tools=(), max_tokens=0):
    return Infer((Message(Role.USER, text),), tools, ToolChoice(), "", None, max_tokens=max_tokens)


def test_the_worst_case_counts_bytes_as_tokens_and_the_limit_of_the_output():
    fixed = TEMPLATE_TOKENS + MESSAGE_TOKENS
    assert worst_case(infer(), Hints(), None, 0) == Amount(5 + fixed + DEFAULT_OUTPUT_TOKENS)
    assert worst_case(infer("é€"), Hints(max_tokens=7), None, 0) == Amount(5 + fixed + 7)
    assert worst_case(infer(max_tokens=3), Hints(max_tokens=7), None, 0) == Amount(5 + fixed + 3)
    tool = ToolDefinition("add", "adds", '{"type":"object"}')
    assert worst_case(infer(tools=(tool,)), Hints(max_tokens=7), None, 0).tokens == 5 + 24 + fixed + MESSAGE_TOKENS + 7


def test_the_context_window_bounds_the_worst_case():
    assert worst_case(infer("x" * 9000), Hints(), None, 4096) == Amount(4096 + DEFAULT_OUTPUT_TOKENS)
    assert worst_case(infer("x" * 9000), Hints(), None, 512) == Amount(512 + 512)


def test_a_vote_may_use_the_output_of_each_replica():
    sample = Sample((Message(Role.USER, "hello"),), "", False, Voting(n=5), 0.7, None)
    assert worst_case(sample, Hints(max_tokens=10), None, 0) == Amount(5 + TEMPLATE_TOKENS + MESSAGE_TOKENS + 50)


def test_money_is_rounded_up_and_needs_prices():
    usage = TokenUsage(prompt_tokens=10, cached_prompt_tokens=4, output_tokens=2)
    assert amount_of(usage, PRICES) == Amount(12, 15)  # 6 + 0.4 + 8
    assert amount_of(usage, None) == Amount(12)


def test_a_budget_grants_more_than_is_needed_until_it_ends():
    budget = Budget(Account("t"), Period.DAY, 100, None)
    assert budget.grant(Amount(1)) == Amount(GRANT_FACTOR)
    assert budget.grant(Amount(2)) == Amount(50), "others want to spend too"
    assert budget.grant(Amount(60)) == Amount(60)
    assert budget.grant(Amount(100)) == Amount(100)
    assert budget.grant(Amount(101)) is None
    both = Budget(Account("t"), Period.DAY, None, 10, granted=Amount(1000, 4))
    assert both.grant(Amount(5, 7)) is None
    assert both.grant(Amount(5, 2)) == Amount(5 * GRANT_FACTOR, 3)
    assert Budget(Account("t"), Period.DAY, 0, None).grant(Amount(1)) is None


def test_what_was_used_beyond_the_reserved_is_missing_later():
    purse = Purse((0.0, 0.0))
    purse.put(Amount(100))
    assert purse.reserve(Amount(60))
    assert not purse.reserve(Amount(41))
    purse.settle(Amount(60), Amount(110))
    assert (purse.free, purse.reserved) == (Amount(-10), NOTHING)
    assert not purse.reserve(Amount(1))


class Spenders(RuleBasedStateMachine):
    """Orchestrators that spend one budget; each inference uses at most what it reserved."""

    @initialize(limit=st.integers(0, 500))
    def begin(self, limit):
        self.limit = limit
        self.budget = Budget(Account("t"), Period.DAY, limit, None)
        self.purses = [Purse((0.0, 0.0)) for _ in range(3)]
        self.running = []
        self.used = 0

    @rule(who=st.integers(0, 2), needed=st.integers(1, 40))
    def reserve(self, who, needed):
        purse, amount = self.purses[who], Amount(needed)
        if not purse.reserve(amount):
            granted = self.budget.grant(amount)
            if granted is None:
                return
            self.budget = Budget(Account("t"), Period.DAY, self.limit, None, granted=self.budget.granted + granted)
            purse.put(granted)
            assert purse.reserve(amount)
        self.running.append((who, purse, amount))

    @rule(share=st.floats(0, 1))
    def settle(self, share):
        if self.running:
            _who, purse, amount = self.running.pop(0)
            used = Amount(int(amount.tokens * share))
            self.used += used.tokens
            purse.settle(amount, used)

    @rule(who=st.integers(0, 2))
    def give_back(self, who):
        free = self.purses[who].take_free()
        self.budget = Budget(Account("t"), Period.DAY, self.limit, None, granted=self.budget.granted - free)

    @rule(who=st.integers(0, 2))
    def die(self, who):
        for _who, _purse, amount in [one for one in self.running if one[0] == who]:
            self.used += amount.tokens  # the engine may have used all of it
        self.running = [one for one in self.running if one[0] != who]
        self.purses[who] = Purse((0.0, 0.0))

    @invariant()
    def never_more_than_the_budget(self):
        running = sum(amount.tokens for _, _, amount in self.running)
        assert self.used + running <= self.limit


TestSpenders = Spenders.TestCase
TestSpenders.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


@given(st.text(max_size=200))
def test_a_text_has_no_more_tokens_than_bytes(text):
    assert worst_case(infer(text), Hints(max_tokens=1), None, 0).tokens >= len(text.encode()) + 1
