"""Compares the scores of two evaluations of the same cases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.evaluation.comparing.resampling import Interval, adjust_for_several, mean_interval, p_of_no_difference

SEED = 0
ALL = ""  # The tag of a row about all cases.


@dataclass(frozen=True, slots=True)
class ScoredCase:
    """The scores of a case. `key` is the hash of its input and expectations. A value of None marks a missing score."""

    key: str
    tags: Sequence[str]
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Difference:
    """The paired difference of a score, after minus before, over all cases or the cases with a tag.

    `p` is the probability of such a difference if there were no real difference. `p_adjusted` accounts for the number
    of scores or measures.
    """

    scorer: str
    unit: str
    tag: str
    pairs: int
    before: float
    after: float
    interval: Interval | None
    p: float
    p_adjusted: float = 1.0

    @property
    def difference(self) -> float:
        """The difference of the means, after minus before."""
        return self.after - self.before

    @property
    def regression(self) -> float:
        """The size of the decline, negative for an improvement. A lower score is worse, and so is a higher measure."""
        if self.unit:
            return self.difference
        return -self.difference


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences over all cases and by tag, and the number of cases that could not be paired."""

    overall: Sequence[Difference]
    by_tag: Sequence[Difference]
    pairs: int
    only_before: int
    only_after: int
    changed: int


def compare(
    before: Mapping[str, ScoredCase], after: Mapping[str, ScoredCase], units: Mapping[str, str], *, seed: int = SEED
) -> Comparison:
    """Compare two evaluations by the names of their cases.

    Cases whose input or expectation differs are not paired.

    Args:
    before: The cases of the baseline by name.
    after: The cases of the other evaluation by name.
    units: The unit of each score, or an empty string for scores from 0 to 1.
    seed: The seed of the random streams.
    """
    shared = before.keys() & after.keys()
    paired = {name: (before[name], after[name]) for name in sorted(shared) if before[name].key == after[name].key}
    tags = sorted({tag for _, case in paired.values() for tag in case.tags})
    overall = _rows(list(paired.values()), units, ALL, seed)
    by_tag: list[Difference] = []
    for tag in tags:
        by_tag += _rows([pair for pair in paired.values() if tag in pair[1].tags], units, tag, seed)
    return Comparison(
        overall=_adjusted(overall),
        by_tag=_adjusted(by_tag),
        pairs=len(paired),
        only_before=len(before) - len(shared),
        only_after=len(after) - len(shared),
        changed=len(shared) - len(paired),
    )


def _rows(
    pairs: Sequence[tuple[ScoredCase, ScoredCase]], units: Mapping[str, str], tag: str, seed: int
) -> list[Difference]:
    rows = []
    for scorer, unit in units.items():
        values = [(one.values.get(scorer), other.values.get(scorer)) for one, other in pairs]
        both = [(one, other) for one, other in values if one is not None and other is not None]
        if both:
            rows.append(_row(both, scorer, unit, tag, seed))
    return rows


def _row(both: Sequence[tuple[float, float]], scorer: str, unit: str, tag: str, seed: int) -> Difference:
    differences = [other - one for one, other in both]
    return Difference(
        scorer=scorer,
        unit=unit,
        tag=tag,
        pairs=len(both),
        before=mean_of(one for one, _ in both),
        after=mean_of(other for _, other in both),
        interval=mean_interval(differences, seed=seed),
        p=p_of_no_difference(differences, seed=seed),
    )


def _adjusted(rows: Sequence[Difference]) -> list[Difference]:
    """Return the rows with p adjusted for the number of scores or of measures, which are counted separately."""
    by_kind = {
        is_measure: iter(adjust_for_several([row.p for row in rows if bool(row.unit) is is_measure]))
        for is_measure in (False, True)
    }
    return [replace(row, p_adjusted=next(by_kind[bool(row.unit)])) for row in rows]


def mean_of(values: Iterable[float]) -> float:
    """Return the mean of at least one value."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)
