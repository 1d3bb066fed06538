"""Computes an evaluation's figures: mean scores with intervals, overall and by tag and variant, failures and usage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway.evaluation.comparing.comparison import ALL, SEED, Comparison, Difference, ScoredCase, mean_of
from gateway.evaluation.comparing.resampling import Interval, mean_interval
from gateway.evaluation.running.results import Result, Results

_QUANTILES = (("p50", 0.5), ("p95", 0.95))


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of a score over all cases or the cases of a tag or variant. `mean` is None if no case has the score."""

    scorer: str
    unit: str
    tag: str
    cases: int
    missing: int
    mean: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures of an evaluation. `latency_s` maps names of quantiles to latencies."""

    name: str
    cases: int
    done: int
    failed: Mapping[str, int]
    means: Sequence[Mean]
    by_tag: Sequence[Mean]
    models: Sequence[str]
    prompt_tokens: int
    output_tokens: int
    latency_s: Mapping[str, float]

    @property
    def overall(self) -> dict[str, float | None]:
        """The mean of each score over all cases."""
        return {mean.scorer: mean.mean for mean in self.means}


def figures_of(results: Results) -> Figures:
    """Return the figures of the cases that have results."""
    stored = list(results.by_case.values())
    units = results.header.units
    return Figures(
        name=results.header.name,
        cases=results.case_count,
        done=len(stored),
        failed=dict(Counter(result.error for result in stored if result.error)),
        means=_means(stored, units, ALL),
        by_tag=_means_by_tag(stored, units),
        models=sorted({result.model for result in stored if result.model}),
        prompt_tokens=sum(result.prompt_tokens for result in stored),
        output_tokens=sum(result.output_tokens for result in stored),
        latency_s=_quantiles_of(sorted(result.latency_s for result in stored if result.latency_s is not None)),
    )


def scored_cases(results: Results) -> dict[str, ScoredCase]:
    """Return the scores of each case by its name, in the form that `compare` expects."""
    return {
        name: ScoredCase(result.key, result.groups, {label: score.value for label, score in result.scores.items()})
        for name, result in results.by_case.items()
    }


def shared_units(before: Results, after: Results) -> dict[str, str]:
    """Return the units of the scores that have the same unit in both evaluations."""
    units = before.header.units
    return {name: unit for name, unit in after.header.units.items() if units.get(name) == unit}


def as_json(
    results: Results, figures: Figures, comparison: Comparison | None, gate: Sequence[str] | None, baseline: str = ""
) -> dict[str, Any]:
    """Return a report as JSON, without a comparison or a gate that is None."""
    header = results.header.model_dump(mode="json", exclude={"suite", "kind", "format"})
    report: dict[str, Any] = {
        "evaluation": header,
        "figures": asdict(figures),
        "results": [result.model_dump(mode="json", exclude={"kind"}) for result in results.by_case.values()],
    }
    if comparison is not None:
        report["comparison"] = {
            "baseline": baseline,
            **{name: getattr(comparison, name) for name in ("pairs", "only_before", "only_after", "changed")},
            "overall": [_row_json(row) for row in comparison.overall],
            "by_tag": [_row_json(row) for row in comparison.by_tag],
        }
    if gate is not None:
        report["gate"] = {"passed": not gate, "failures": list(gate)}
    return report


def _row_json(row: Difference) -> dict[str, Any]:
    return {**asdict(row), "difference": row.difference}


def _means_by_tag(stored: Sequence[Result], units: Mapping[str, str]) -> list[Mean]:
    means: list[Mean] = []
    for tag in sorted({tag for result in stored for tag in result.groups}):
        means += _means([result for result in stored if tag in result.groups], units, tag)
    return means


def _quantiles_of(times: Sequence[float]) -> dict[str, float]:
    if not times:
        return {}
    return {name: times[min(len(times) - 1, int(share * len(times)))] for name, share in _QUANTILES}


def _means(stored: Sequence[Result], units: Mapping[str, str], tag: str) -> list[Mean]:
    means = []
    for scorer, unit in units.items():
        scores = [result.scores[scorer].value for result in stored if scorer in result.scores]
        if not scores:
            continue
        values = [value for value in scores if value is not None]
        means.append(
            Mean(
                scorer=scorer,
                unit=unit,
                tag=tag,
                cases=len(values),
                missing=len(scores) - len(values),
                mean=mean_of(values) if values else None,
                interval=mean_interval(values, seed=SEED),
            )
        )
    return means
