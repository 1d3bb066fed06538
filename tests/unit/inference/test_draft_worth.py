"""Whether drafts pay: whatever the costs and the acceptance are, little is lost, and what can be gained is gained."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from services.inference.core.scheduling.draft_worth import MAX_DEPTH, MeasuredWorth, Standing, StepShape
from services.inference.core.scheduling.drafting import StepCosts

PROMPT = 40
ANSWER = 150
FRACTIONS = st.floats(0, 1)


def decode(answers, acceptance, main_s, draft_s, seed=0):
    """Decode answers of one branch after the other by what the policy says; return the seconds and the tokens."""
    worth, costs = MeasuredWorth(), StepCosts()
    right = np.random.Generator(np.random.Philox(key=seed)).random
    costs.learn(PROMPT, main_s(PROMPT))
    for rows in (PROMPT, 1):
        worth.learn_draft(rows, draft_s(rows))
    spent_s = tokens = 0
    for _ in range(answers):
        standing = Standing(worth.first_acceptance, pending=PROMPT)
        said = 0
        while said < ANSWER:
            standing.remaining = standing.limit = ANSWER - said
            shape = StepShape(1, 1, 63)
            if standing.pending > 16 and not standing.trial_rounds:
                is_followed = worth.pays_to_follow(standing, shape, costs)
                is_followed = worth.try_out(standing, shape, costs) or is_followed
            depth, guessing_s = 0, 0.0
            if is_followed and standing.pending > 16:
                guessing_s = draft_s(standing.pending - 1)
                standing.pending = 1
            elif is_followed:
                (depth,) = worth.depths([standing], shape, costs)
            if depth:
                steps = [standing.pending, *[1] * (depth - 1)]
                guessing_s = sum(map(draft_s, steps))
                for rows in steps:
                    worth.learn_draft(rows, draft_s(rows))
            accepted = next((at for at in range(depth) if right() >= acceptance), depth)
            cost_s = main_s(1 + depth)
            costs.learn(1 + depth, cost_s)
            if depth:
                worth.learn(standing, depth, accepted)
            worth.settle(shape, costs, cost_s=cost_s, draft_s=guessing_s, gained=accepted)
            standing.pending = 1 if depth else standing.pending + 1
            said += 1 + accepted
            spent_s += guessing_s + cost_s
        tokens += said
    return spent_s, tokens


@settings(max_examples=25, deadline=None)
@given(FRACTIONS, FRACTIONS, FRACTIONS, st.floats(0.01, 1), st.integers(0, 99))
def test_drafts_lose_a_bounded_time_once_and_a_small_share_for_ever(
    acceptance, row_share, draft_row_share, draft_share, seed
):
    def main_s(rows):
        return 0.01 * (1 + row_share * (rows - 1))

    def draft_s(rows):
        return 0.01 * draft_share * (1 + draft_row_share * (rows - 1))

    spent_s, tokens = decode(12, acceptance, main_s, draft_s, seed)
    lost_steps = spent_s / main_s(1) - tokens
    # The debt ends at 50 steps, and the last drafts and the prompt of the draft model may go beyond.
    once = 50 + MAX_DEPTH + PROMPT
    assert lost_steps < 0.02 * tokens + once


@pytest.mark.parametrize(("acceptance", "least"), [(0.95, 3.0), (0.8, 2.0), (0.6, 1.4)])
def test_cheap_drafts_gain_most_of_what_their_acceptance_allows(acceptance, least):
    def main_s(rows):
        return 0.01 * (1 + 0.02 * (rows - 1))

    def draft_s(rows):
        return 0.0005 * (1 + 0.02 * (rows - 1))

    spent_s, tokens = decode(20, acceptance, main_s, draft_s)
    possible = max(
        sum(acceptance**at for at in range(depth + 1)) / (main_s(1 + depth) + depth * draft_s(1))
        for depth in range(1, MAX_DEPTH + 1)
    )
    assert tokens / spent_s > least * 100
    assert tokens / spent_s > 0.85 * possible
