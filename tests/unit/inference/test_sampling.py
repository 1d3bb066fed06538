from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagantic.inference.v1 import generation_pb2
from pagantic_common.domain.errors import InvalidRequest
from services.inference.convert import sampling_from_proto
from services.inference.core.decoding.sampling import adjust_logits, log_probabilities, rank_tokens
from services.inference.core.generation import Sampling
from services.inference.core.request_check import check_sampling
from tests.support.examples import examples

# Of 16 bits, so that logits that differ have weights that differ.
LOGITS = st.lists(st.floats(-20, 20, width=16), min_size=2, max_size=40).map(lambda v: np.array(v, dtype=np.float32))
DRAWS = st.floats(0, 1, exclude_max=True)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_p=st.sampled_from([0.1, 0.6, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 40]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
)


def pick_token(logits, sampling, draw):
    return rank_tokens(logits, sampling).pick(draw)


def reference(logits, sampling):
    """The chain as it is described, over Python floats: token -> probability."""
    order = sorted((i for i in range(len(logits)) if np.isfinite(logits[i])), key=lambda i: (-logits[i], i))
    if sampling.temperature == 0:
        return {order[0]: 1.0}
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = [np.exp(float(logits[i]) - float(logits[order[0]])) for i in order]
    if sampling.top_p < 1:
        cumulative = np.cumsum(weights)
        size = int(np.argmax(cumulative >= sampling.top_p * cumulative[-1])) + 1
        order, weights = order[:size], weights[:size]
    kept = [(i, w) for i, w in zip(order, weights, strict=True) if w >= sampling.min_p]
    powers = {i: w ** (1 / sampling.temperature) for i, w in kept}
    return {i: power / sum(powers.values()) for i, power in powers.items()}


def probabilities(choices):
    return dict(zip(choices.tokens, np.diff(choices.cumulative, prepend=0.0), strict=True))


@given(LOGITS, SAMPLINGS)
def test_the_chain_is_the_one_described(logits, sampling):
    choices = rank_tokens(logits.copy(), sampling)
    found = probabilities(choices)
    expected = reference(logits, sampling)
    assert found.keys() >= {token for token, probability in expected.items() if probability > 1e-9}
    for token, probability in found.items():
        assert abs(probability - expected.get(token, 0.0)) < 1e-6


@given(st.integers(0, 2**32 - 1), st.integers(64, 9000), st.sampled_from([0.01, 1, 4]), st.integers(2, 60), SAMPLINGS)
def test_the_best_of_many_tokens_are_found_as_by_sorting_all(seed, size, spread, allowed, sampling):
    random = np.random.default_rng(seed)
    # Equal logits are common, and sometimes few tokens are allowed.
    logits = np.round(random.standard_normal(size) * spread, 3).astype(np.float32)
    if seed % 3 == 0:
        logits[random.permutation(size)[allowed:]] = -np.inf
    found, expected = probabilities(rank_tokens(logits.copy(), sampling)), reference(logits, sampling)
    assert found.keys() >= {token for token, probability in expected.items() if probability > 1e-9}
    for token, probability in found.items():
        assert abs(probability - expected.get(token, 0.0)) < 1e-6


@given(LOGITS)
def test_log_probabilities_sum_to_one(logits):
    assert abs(np.exp(log_probabilities(logits)).sum() - 1) < 1e-9


@given(LOGITS)
def test_temperature_zero_takes_the_most_probable_token(logits):
    assert pick_token(logits, Sampling(temperature=0), 0.7) == int(np.argmax(logits))


@given(LOGITS, DRAWS, st.data())
def test_a_masked_token_is_never_picked(logits, draw, data):
    allowed = data.draw(st.sets(st.integers(0, len(logits) - 1), min_size=1))
    masked = np.array([value if i in allowed else -np.inf for i, value in enumerate(logits)], dtype=np.float32)
    assert pick_token(masked, Sampling(), draw) in allowed


@given(LOGITS, DRAWS, st.integers(1, 5))
def test_top_k_keeps_only_the_k_best(logits, draw, k):
    picked = pick_token(logits, Sampling(top_k=k, top_p=1, min_p=0), draw)
    assert int(np.count_nonzero(logits > logits[picked])) < k


def test_draws_follow_the_distribution():
    logits = np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32))
    sampling = Sampling(temperature=1, top_k=0, top_p=1, min_p=0)
    draws = np.random.default_rng(1).random(20_000)
    counts = Counter(pick_token(logits.copy(), sampling, draw) for draw in draws)
    assert np.allclose([counts[i] / 20_000 for i in range(3)], [0.5, 0.3, 0.2], atol=0.015)


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32))
    sampling = Sampling(temperature=1, top_k=0, top_p=0.6, min_p=0)
    picked = {pick_token(logits.copy(), sampling, draw) for draw in np.linspace(0, 0.999, 50)}
    assert picked == {0, 1}


def test_min_p_drops_what_is_far_below_the_best():
    logits = np.log(np.array([0.8, 0.15, 0.05], dtype=np.float32))
    sampling = Sampling(temperature=1, top_k=0, top_p=1, min_p=0.1)
    assert {pick_token(logits.copy(), sampling, draw) for draw in np.linspace(0, 0.999, 50)} == {0, 1}


def test_penalties_and_bias_change_only_their_tokens():
    logits = np.array([2.0, -2.0, 1.0], dtype=np.float32)
    sampling = Sampling(repetition_penalty=2, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={2: -3, 99: 1})
    adjust_logits(logits, sampling, Counter({0: 2, 1: 1}))
    assert np.allclose(logits, [2 / 2 - 0.5 - 0.5, -4 - 0.5 - 0.25, -2])


ACCEPTED = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1, exclude_min=True),
        "top_k": st.integers(0, 2**31 - 1),
        "min_p": st.floats(0, 1),
        "repetition_penalty": st.floats(0.1, 2),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, 40), st.floats(-100, 100, width=32), max_size=8),
    },
)
WIDE_LOGITS = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=2, max_size=40).map(
    lambda values: np.array(values, dtype=np.float32)
)


@settings(max_examples=examples(300))
@given(WIDE_LOGITS, ACCEPTED, st.dictionaries(st.integers(0, 1), st.integers(1, 4096)), DRAWS)
def test_every_accepted_sampling_leaves_a_finite_choice(logits, fields, seen, draw):
    sampling = sampling_from_proto(generation_pb2.Sampling(**fields))
    check_sampling(sampling)
    adjust_logits(logits, sampling, Counter(seen))
    choices = rank_tokens(logits, sampling)
    assert len(choices.tokens) >= 1
    assert np.isfinite(choices.cumulative).all()
    assert np.isfinite(logits[choices.pick(draw)])


@pytest.mark.parametrize("penalty", [1e-300, 1e-38, 0.0999, 0.0, -1.0, float("nan"), float("inf"), 2.1])
def test_a_penalty_that_could_make_logits_infinite_is_refused(penalty):
    with pytest.raises(InvalidRequest, match=r"between 0\.1 and 2"):
        check_sampling(sampling_from_proto(generation_pb2.Sampling(repetition_penalty=penalty)))
