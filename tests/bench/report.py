"""From measurements to figures, medians, gains and text. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import takewhile

from tests.bench.load import Measurement

_WIDTHS = (28, 12, 14, 10)


@dataclass(frozen=True, slots=True)
class Figures:
    """One side under one load; None where the side does not tell.

    Attributes:
        tokens_per_s: Output tokens of all candidates.
        requests_per_s: A request with several candidates is one.
        first_p50_s: Time to the first text, median.
        first_p95_s: Its 95th percentile.
        latency_p50_s: Time to the end of the answer, median.
        latency_p95_s: Its 95th percentile.
        prompt_tokens: Prompt tokens that were asked, all requests together.
        computed_prompt_tokens: Of these, computed instead of taken from a cache.
        output_tokens: Per request.
        client_cpu_ratio: CPU seconds of the load generator per second.
        wrong_answers: Answers that are not what the query wanted.
    """

    tokens_per_s: float
    requests_per_s: float
    first_p50_s: float
    first_p95_s: float
    latency_p50_s: float
    latency_p95_s: float
    prompt_tokens: float | None
    computed_prompt_tokens: float | None
    output_tokens: float
    client_cpu_ratio: float
    wrong_answers: float


# Field, label, digits, and whether more is better; None is neither.
_ROWS: tuple[tuple[str, str, int, bool | None], ...] = (
    ("tokens_per_s", "tokens/s", 1, True),
    ("requests_per_s", "requests/s", 2, True),
    ("first_p50_s", "first token p50, s", 3, False),
    ("first_p95_s", "first token p95, s", 3, False),
    ("latency_p50_s", "latency p50, s", 3, False),
    ("latency_p95_s", "latency p95, s", 3, False),
    ("prompt_tokens", "prompt tokens asked", 0, None),
    ("computed_prompt_tokens", "prompt tokens computed", 0, False),
    ("output_tokens", "output tokens per request", 1, None),
    ("client_cpu_ratio", "load generator, CPU s/s", 3, None),
    ("wrong_answers", "wrong answers (all runs)", 0, None),
)


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the value below which `fraction` of the values lie, interpolated between the two nearest."""
    ordered = sorted(values)
    position = fraction * (len(ordered) - 1)
    low = math.floor(position)
    high = math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def equal_characters(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def figures_of(measurement: Measurement, output_tokens: int, wrong_answers: int) -> Figures:
    """Sum a measurement up; `output_tokens` is of all its answers together."""
    answers = measurement.answers
    first_s = [answer.first_s - answer.sent_s for answer in answers]
    latency_s = [answer.ended_s - answer.sent_s for answer in answers]
    asked = [answer.prompt_tokens for answer in answers]
    return Figures(
        tokens_per_s=output_tokens / measurement.wall_s,
        requests_per_s=len(answers) / measurement.wall_s,
        first_p50_s=percentile(first_s, 0.5),
        first_p95_s=percentile(first_s, 0.95),
        latency_p50_s=percentile(latency_s, 0.5),
        latency_p95_s=percentile(latency_s, 0.95),
        prompt_tokens=None if None in asked else sum(one for one in asked if one is not None),
        computed_prompt_tokens=measurement.computed_prompt_tokens,
        output_tokens=output_tokens / len(answers),
        client_cpu_ratio=measurement.client_cpu_s / measurement.wall_s,
        wrong_answers=wrong_answers,
    )


def median_of(runs: Sequence[Figures]) -> Figures:
    """Return the median of each figure over the runs; wrong answers are summed, for one is one too many."""
    merged: dict[str, float | None] = {}
    for field in fields(Figures):
        values = [value for run in runs if (value := getattr(run, field.name)) is not None]
        merged[field.name] = statistics.median(values) if values else None
    merged["wrong_answers"] = sum(run.wrong_answers for run in runs)
    return Figures(**merged)  # type: ignore[arg-type]


def gain(ours: float | None, peer: float | None, *, is_more_better: bool) -> float | None:
    """Return how many times better ours is: above 1 is better; None where a side has no figure."""
    better, worse = (ours, peer) if is_more_better else (peer, ours)
    if better is None or worse is None:
        return None
    if worse == 0:
        return 1.0 if better == 0 else math.inf
    return better / worse


def block(title: str, ours: Figures, peer: Figures | None, peer_name: str) -> str:
    """Return the table of one scenario at one number of clients."""
    heads = ("", "ours", peer_name, "gain") if peer else ("", "ours")
    lines = [title, _line(heads)]
    for field, label, digits, is_more_better in _ROWS:
        mine = getattr(ours, field)
        cells = [label, _number(mine, digits)]
        if peer:
            theirs = getattr(peer, field)
            better = None if is_more_better is None else gain(mine, theirs, is_more_better=is_more_better)
            cells += [_number(theirs, digits), "" if is_more_better is None else _number(better, 2)]
        lines.append(_line(cells))
    return "\n".join(lines)


def summary(results: Sequence[tuple[str, int, Figures, Figures | None]]) -> str:
    """Return one line per scenario and number of clients: the figures that matter most, ours / the peer's = gain."""
    lines = [f"{'scenario':<15}{'clients':>8}  {'tokens/s':<26}{'requests/s':<26}{'first token p50, s':<26}"]
    for name, clients, ours, peer in results:
        cells = []
        for field, _, digits, is_more_better in _ROWS[:3]:
            mine = getattr(ours, field)
            text = _number(mine, digits)
            if peer:
                theirs = getattr(peer, field)
                better = gain(mine, theirs, is_more_better=bool(is_more_better))
                text = f"{text} / {_number(theirs, digits)} = {_number(better, 2)}"
            cells.append(f"{text:<26}")
        lines.append(f"{name:<15}{clients:>8}  {''.join(cells)}".rstrip())
    return "\n".join(lines)


def as_json(figures: Figures | None) -> dict[str, float | None] | None:
    """Return figures by name."""
    return None if figures is None else asdict(figures)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _line(cells: Sequence[str]) -> str:
    first, *rest = cells
    padded = [f"  {first:<{_WIDTHS[0]}}", *(f"{cell:>{width}}" for cell, width in zip(rest, _WIDTHS[1:], strict=False))]
    return "".join(padded).rstrip()
