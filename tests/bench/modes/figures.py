"""The figures of each arm from the results of `pagantic eval`: means, paired differences, failures and times."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.evaluation.comparing.comparison import SEED, Difference, ScoredCase, compare, mean_of
from gateway.evaluation.comparing.resampling import Interval, mean_interval
from gateway.evaluation.running.results import Result, Results, read_results
from pagantic_common.grammar.expressions import Expression, ExpressionError, as_doubles
from tests.bench.modes.suites import ARMS, BLOCK, CHAT, RULE, SCORE

COST, TOKENS = "cost", "tokens"


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """What an arm came to, with one task and one model.

    Attributes:
        right: Share of right answers, a failed case being wrong, and its interval.
        gain: The paired difference from the arm that it is compared with.
        answered: Share of right ones among the cases that did not fail.
        holds: Share of all cases with an answer for which the rule holds; None for free answers.
        latency_s: Median.
        time_ratio: Median of the blocks' ratios of their medians to that of `base`, so that what slows a block down
            counts for both.
        failed: Failed cases by their code.
        cut: Free answers that reached max_tokens.
    """

    arm: str
    cases: int
    right: float
    interval: Interval | None
    gain: Difference | None
    answered: float | None
    holds: float | None
    tokens: float
    cost_usd: float
    latency_s: float
    time_ratio: float
    failed: Mapping[str, int]
    cut: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of one task with one model, of the samples that have a result in every arm."""

    by_arm: Mapping[str, Mapping[str, Result]]
    rules: Mapping[str, str]
    chat_tokens: int

    @property
    def cases(self) -> int:
        """The number of samples."""
        return len(next(iter(self.by_arm.values())))


def read(paths: Sequence[Path]) -> Measured | None:
    """Return the results of blocks; None without a sample that has a result in every arm."""
    by_arm: dict[str, dict[str, Result]] = {arm: {} for arm in ARMS}
    rules: dict[str, str] = {}
    chat_tokens = 0
    for path in paths:
        results = read_results(path)
        rules |= _rules_of(results)
        chat_tokens = _chat_tokens_of(results)
        for result in results.by_case.values():
            arm, _, number = result.case.partition(".")
            by_arm[arm][number] = result
    shared = set.intersection(*(set(found) for found in by_arm.values()))
    if not shared:
        return None
    complete = {arm: {number: found[number] for number in sorted(shared)} for arm, found in by_arm.items()}
    return Measured(complete, rules, chat_tokens)


def _rules_of(results: Results) -> dict[str, str]:
    """Return the rule of each sample, by its number."""
    return {
        case["name"].partition(".")[2]: rule["expression"]
        for case in results.header.suite["cases"]
        for rule in case["request"].get("rules", ())
        if rule["name"] == RULE
    }


def _chat_tokens_of(results: Results) -> int:
    """Return the most tokens that a free answer may have."""
    limits = [
        case["request"]["hints"]["max_tokens"] for case in results.header.suite["cases"] if case["tags"] == [CHAT]
    ]
    return max(limits)


def figures_of(measured: Measured, arm: str, base: str) -> ArmFigures:
    """Return the figures of an arm, compared with the arm `base`."""
    found = measured.by_arm[arm]
    results = list(found.values())
    scores = [_value_of(result, SCORE) for result in results]
    answered = [score for score, result in zip(scores, results, strict=True) if not result.error]
    gain = None
    if arm != base:
        gain = difference(measured, base, arm)
    return ArmFigures(
        arm=arm,
        cases=len(results),
        right=mean_of(scores),
        interval=mean_interval(scores, seed=SEED),
        gain=gain,
        answered=mean_of(answered) if answered else None,
        holds=_holds(found, measured.rules),
        tokens=mean_of(_value_of(result, TOKENS) for result in results),
        cost_usd=mean_of(_value_of(result, COST) for result in results),
        latency_s=statistics.median(result.latency_s or 0.0 for result in results),
        time_ratio=_time_ratio(found, measured.by_arm[base]),
        failed=Counter(result.error for result in results if result.error),
        cut=sum(arm == CHAT and result.output_tokens >= measured.chat_tokens for result in results),
    )


def _time_ratio(found: Mapping[str, Result], base: Mapping[str, Result]) -> float:
    own, others = _times_of_blocks(found), _times_of_blocks(base)
    return statistics.median(time_s / others[block] for block, time_s in own.items())


def _times_of_blocks(found: Mapping[str, Result]) -> dict[int, float]:
    """Return the median time of each block."""
    times: dict[int, list[float]] = {}
    for number, result in found.items():
        times.setdefault((int(number) - 1) // BLOCK, []).append(result.latency_s or 0.0)
    return {block: statistics.median(of_block) for block, of_block in times.items()}


def difference(measured: Measured, before: str, after: str) -> Difference:
    """Return the paired difference of right answers between two arms."""
    scored = [
        {
            number: ScoredCase(result.key, (), {SCORE: _value_of(result, SCORE)})
            for number, result in measured.by_arm[arm].items()
        }
        for arm in (before, after)
    ]
    (row,) = compare(*scored, {SCORE: ""}).overall
    return row


def _value_of(result: Result, label: str) -> float:
    return result.scores[label].value or 0.0


def _holds(found: Mapping[str, Result], rules: Mapping[str, str]) -> float | None:
    """Return the share of documents for which the rule of their sample holds; None where no answer is a document."""
    held = []
    for number, result in found.items():
        if result.error:
            continue
        try:
            value = json.loads(result.output)
        except ValueError:
            return None
        held.append(float(_is_true(rules[number], value)))
    return mean_of(held) if held else None


def _is_true(rule: str, value: object) -> bool:
    try:
        return Expression(rule).evaluate({"value": as_doubles(value)}) is True
    except ExpressionError:
        return False
