"""Chooses an engine's settings by measurements on this machine and by the load, and records the reasons.

Theory of operation. A measurement is a series of rounds. Each round measures every candidate once, so that a
disturbance affects all candidates. A round counts if the machine was quiet. Rounds are combined if they agree. A
candidate replaces a default only if its lead exceeds the noise.

Flash attention on a CPU visits the cells that a row attends to, row by row. Without flash attention, blocks of rows are
multiplied with all cells in use. Flash attention is thus faster where sequences share little, and slower for shared
prefixes and for prompts. Therefore, steps are measured by kind (`StepKind`), and `follow` weighs the kinds by the
recent load.

Threads that spin for a long time meet sooner at the barriers of a step. However, if another process is busy, a spinning
thread takes the core from the thread that it waits for. `SpinRule` decides between long and short spinning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from statistics import median
from typing import Any

StepTimes = tuple[float, ...]  # by StepKind

_PROMPT_TOKENS = 33  # exceeds the length of any draft
_APART_SHARE = 1 / 3  # A row of an APART step attends to at most this share of the cells in use.
_MEMORY_S = 120.0  # after this many seconds of steps, all earlier seconds are halved
_ENOUGH_S = 20.0  # a shorter load is ignored
CLOSE = 1.08  # measurements within this factor count as equal, because the noise is as large
SPREAD = 0.15  # maximum distance of a round from the median of all rounds, as a fraction of the median
MIN_ROUNDS = 3
MAX_ROUNDS = 9
BUSY_CORES = 0.2  # load of other processes beyond the cores that the engine leaves free
DEFAULT_SPIN_COUNT = 1000
DEFAULT_STEP_TOKENS = 64
GPU_STEP_TOKENS = 512
FREE_S = 60.0
IDLE_SHARE = 0.05
LONG_SPIN_COUNT = 100_000
QUIET_READINGS = 2


class StepKind(IntEnum):
    """The kinds of steps, which differ in the cost of their attention."""

    ALONE = 0  # one sequence
    APART = 1  # sequences that share little
    SHARED = 2  # sequences that share most of their tokens
    PROMPT = 3  # many tokens of one sequence


def kind_of(parts: Sequence[tuple[int, int]], used_cells: int) -> StepKind:
    """Return the kind of a step.

    Args:
        parts: For each sequence, the number of its earlier tokens and the number of tokens that the step computes.
        used_cells: The number of cells in use after the step.
    """
    if len(parts) == 1:
        return StepKind.PROMPT if parts[0][1] >= _PROMPT_TOKENS else StepKind.ALONE
    if max(tokens for _, tokens in parts) >= _PROMPT_TOKENS:
        return StepKind.PROMPT
    attended = sum(before + tokens for before, tokens in parts)
    if attended <= used_cells * len(parts) * _APART_SHARE:
        return StepKind.APART
    return StepKind.SHARED


class StepLoad:
    """The durations of recent steps in seconds, by kind of step."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(StepKind, 0.0)

    @property
    def seconds(self) -> StepTimes:
        """The seconds of recent steps, by kind of step."""
        return tuple(self._seconds.values())

    def add(self, parts: Sequence[tuple[int, int]], used_cells: int, seconds: float) -> None:
        """Add a step to the load, by the kind that `kind_of` returns. A step without parts is ignored."""
        if not parts:
            return
        self._seconds[kind_of(parts, used_cells)] += seconds
        if sum(self._seconds.values()) > _MEMORY_S:
            self._seconds = {kind: spent / 2 for kind, spent in self._seconds.items()}


def relative_time(spent_s: StepTimes, current_ms: StepTimes, other_ms: StepTimes) -> float:
    """Return the predicted time of a load with the other attention, divided by its actual time.

    Returns 1 for a short load.

    Args:
        spent_s: The seconds that the load spent on each kind of step.
        current_ms: The measured times of a step with the current attention.
        other_ms: The measured times of a step with the other attention.
    """
    total_s = sum(spent_s)
    if total_s < _ENOUGH_S:
        return 1.0
    ratios = (other / current for other, current in zip(other_ms, current_ms, strict=True))
    return sum(spent * ratio for spent, ratio in zip(spent_s, ratios, strict=True)) / total_s


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measured values: milliseconds per step, and tokens per second of prompts.

    Args:
        threads_ms: The time of a step of 8 sequences, by number of threads.
        flash_ms: The time of a step of each kind (`StepKind`), by flash attention.
        prompt_rates: The speed of prompts, by flash attention and by number of tokens in a step.
    """

    threads_ms: Mapping[int, float]
    flash_ms: Mapping[bool, StepTimes]
    prompt_rates: Mapping[bool, Mapping[int, float]]

    def values(self) -> dict[tuple[str, int, int], float]:
        """Return every measured value by its name."""
        flash = {("flash", int(is_on), at): ms for is_on, row in self.flash_ms.items() for at, ms in enumerate(row)}
        threads = {("threads", count, 0): ms for count, ms in self.threads_ms.items()}
        rates = {
            ("rate", int(is_on), size): rate for is_on, row in self.prompt_rates.items() for size, rate in row.items()
        }
        return threads | flash | rates


@dataclass(frozen=True, slots=True)
class Round:
    """A measurement of every candidate, with the cores that other processes used meanwhile and the spare cores."""

    measured: Measurements
    others_cores: float = 0.0
    spare_cores: float = 0.0

    @property
    def is_quiet(self) -> bool:
        """Whether other processes left enough cores for the engine."""
        return self.others_cores <= self.spare_cores + BUSY_CORES


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting, its value and the reason for the value."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Way:
    """Measurements with or without flash attention: the time of each kind of step, and the best prompt step size."""

    step_ms: StepTimes
    step_tokens: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings of an engine, with the reasons and the time of the measurement.

    Without measurements, `measured_at` and `ways` are empty. Otherwise, `ways` has two items, measured without and with
    flash attention.
    """

    threads: int
    spin_count: int = DEFAULT_SPIN_COUNT
    flash_attention: bool = False
    step_tokens: int = DEFAULT_STEP_TOKENS
    choices: tuple[Choice, ...] = ()
    measured_at: str = ""
    others_cores: float = 0.0
    ways: tuple[Way, ...] = ()


NAMES = ("threads", "spin_count", "flash_attention", "step_tokens")
_SPIN_REASON = "100 times as many while other processes leave the cores alone"


def untuned(threads: int, *, is_on_gpu: bool = False) -> Tuning:
    """Return the tuning without measurements. `threads` is the number of cores."""
    tuning = Tuning(threads)
    device, step_reason = "CPU", "short steps, so that a cancel and a new request do not wait"
    if is_on_gpu:
        tuning = replace(tuning, flash_attention=True, step_tokens=GPU_STEP_TOKENS)
        device, step_reason = "GPU", "a GPU computes hundreds of tokens in little more time than one"
    reasons = {
        "threads": "default: the cores that this process may use",
        "spin_count": f"default: {_SPIN_REASON}",
        "flash_attention": f"default on a {device}",
        "step_tokens": f"default: {step_reason}",
    }
    return _explained(tuning, reasons)


def with_given(tuning: Tuning, given: Mapping[str, Any]) -> Tuning:
    """Return a tuning in which the `given` values replace the measured values."""
    reasons = {choice.name: choice.reason for choice in tuning.choices}
    return _explained(replace(tuning, **given), {**reasons, **dict.fromkeys(given, "set")})


def agreed(rounds: Sequence[Round]) -> Measurements | None:
    """Return the medians of the agreeing quiet rounds, or None if these are too few or a minority."""
    quiet = [measured_round.measured for measured_round in rounds if measured_round.is_quiet]
    if len(quiet) < MIN_ROUNDS:
        return None
    middle = _medians(quiet)
    close = [measured for measured in quiet if _distance(measured, middle) <= SPREAD]
    if len(close) < MIN_ROUNDS or 2 * len(close) <= len(quiet):
        return None
    return _medians(close)


def may_measure(spent_s: float, idle_s: float) -> bool:
    """Return whether another measurement may begin.

    All measurements together may take a small share of the idle time.
    """
    return spent_s <= FREE_S + IDLE_SHARE * idle_s


def choose(measured: Measurements, defaults: Tuning) -> Tuning:
    """Choose clearly faster values, or else the defaults. Among equally fast step sizes, choose the smallest.

    Small steps are better because cancellations and new requests wait for the end of a step.
    """
    is_on = _choose_flash(measured.flash_ms, defaults.flash_attention)
    ways = tuple(
        Way(
            measured.flash_ms[way],
            _smallest_close({size: 1 / rate for size, rate in measured.prompt_rates[way].items()}),
        )
        for way in (False, True)
    )
    tuning = replace(
        defaults,
        threads=_clearly_fastest(measured.threads_ms, defaults.threads),
        flash_attention=is_on,
        step_tokens=ways[is_on].step_tokens,
        ways=ways,
    )
    flash = (("with", measured.flash_ms[True]), ("without", measured.flash_ms[False]))
    reasons = {
        "threads": f"a step of 8 sequences took {_listed(measured.threads_ms, 'ms')}",
        "spin_count": f"default: {_SPIN_REASON}",
        "flash_attention": "a long sequence, 8 short ones, 8 that share a long prompt, and a long prompt took "
        + ", ".join(f"{' + '.join(f'{ms:.1f}' for ms in row)} ms {word}" for word, row in flash),
        "step_tokens": f"prompts ran at {_listed(measured.prompt_rates[is_on], 'tokens/s')}",
    }
    return _explained(tuning, reasons)


def follow(tuning: Tuning, spent_s: StepTimes) -> Tuning:
    """Return a measured tuning with the attention that is clearly faster for a load.

    `spent_s` holds the seconds that the load spent on each kind of step.
    """
    if not tuning.ways:
        return tuning
    is_on = tuning.flash_attention
    other = tuning.ways[not is_on]
    share = relative_time(spent_s, tuning.ways[is_on].step_ms, other.step_ms)
    if share * CLOSE >= 1:
        return tuning
    reasons = {choice.name: choice.reason for choice in tuning.choices}
    reasons["flash_attention"] = f"the load of the last minutes would take {share:.2f} of its time"
    return _explained(replace(tuning, flash_attention=not is_on, step_tokens=other.step_tokens), reasons)


def _medians(measured: Sequence[Measurements]) -> Measurements:
    first = measured[0]
    return Measurements(
        {count: median(single.threads_ms[count] for single in measured) for count in first.threads_ms},
        {
            is_on: tuple(median(single.flash_ms[is_on][at] for single in measured) for at in range(len(row)))
            for is_on, row in first.flash_ms.items()
        },
        {
            is_on: {size: median(single.prompt_rates[is_on][size] for single in measured) for size in row}
            for is_on, row in first.prompt_rates.items()
        },
    )


def _distance(measured: Measurements, middle: Measurements) -> float:
    centre = middle.values()
    return max(abs(value / centre[key] - 1) for key, value in measured.values().items())


def _explained(tuning: Tuning, reasons: Mapping[str, str]) -> Tuning:
    choices = tuple(Choice(name, str(getattr(tuning, name)).lower(), reasons[name]) for name in NAMES)
    return replace(tuning, choices=choices)


def _choose_flash(flash_ms: Mapping[bool, tuple[float, ...]], default: bool) -> bool:
    """Return the default unless the other value is clearly faster in total and not clearly slower for any kind."""
    other, usual = flash_ms[not default], flash_ms[default]
    loses = any(theirs > ours * CLOSE for theirs, ours in zip(other, usual, strict=True))
    if loses or sum(other) * CLOSE >= sum(usual):
        return default
    return not default


def _clearly_fastest(costs: Mapping[Any, float], default: Any) -> Any:
    best = min(costs, key=lambda value: costs[value])
    if costs[best] * CLOSE < costs.get(default, float("inf")):
        return best
    return default


def _smallest_close(costs: Mapping[int, float]) -> int:
    best = min(costs.values())
    return min(value for value, cost in costs.items() if cost <= best * CLOSE)


def _listed(values: Mapping[int, float], unit: str) -> str:
    return ", ".join(f"{value:.1f} {unit} at {key}" for key, value in sorted(values.items()))


class SpinRule:
    """Decides whether threads spin long, based on the load of other processes.

    The decision changes at once if the load rises, and after QUIET_READINGS readings if it falls.
    """

    def __init__(self) -> None:
        self._quiet_readings = 0

    def is_long(self, busy_cores: float) -> bool:
        """Record a reading and return whether threads should spin long from now on.

        `busy_cores` is the number of cores that other processes used, minus the number that the engine leaves free.
        """
        self._quiet_readings += 1
        if busy_cores > BUSY_CORES:
            self._quiet_readings = 0
        return self._quiet_readings >= QUIET_READINGS
