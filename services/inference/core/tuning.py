"""Chooses how an engine runs on a machine from what was measured there, and says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

CLOSE = 1.08  # a slower measurement within this factor of the fastest is as good: noise is as large
DEFAULT_SPIN_COUNT = 300
DEFAULT_STEP_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Measurements:
    """What was measured: milliseconds of steps, tokens per second of prompts.

    Args:
        threads_ms: Of a step of 8 sequences, by number of threads.
        spin_ms: Of a step of one sequence, by how long idle threads spin.
        flash_ms: Of a step of 8 sequences, by flash attention: short ones, and ones that share a long prompt.
        prompt_rates: By tokens in a step.
    """

    threads_ms: Mapping[int, float]
    spin_ms: Mapping[int, float]
    flash_ms: Mapping[bool, tuple[float, float]]
    prompt_rates: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting, its value and why it was chosen."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tuning:
    """How an engine runs, and why. Without extra buffer types where the build lives on this CPU only so."""

    threads: int
    spin_count: int = DEFAULT_SPIN_COUNT
    flash_attention: bool = False
    step_tokens: int = DEFAULT_STEP_TOKENS
    use_extra_bufts: bool = True
    choices: tuple[Choice, ...] = ()


NAMES = ("threads", "spin_count", "flash_attention", "step_tokens")


def untuned(threads: int, reason: str) -> Tuning:
    """Return what is used where nothing was measured."""
    return _explained(Tuning(threads), dict.fromkeys(NAMES, reason))


def with_given(tuning: Tuning, given: Mapping[str, Any]) -> Tuning:
    """Return a tuning with values that were set by name; they win over what was measured."""
    reasons = {choice.name: choice.reason for choice in tuning.choices}
    return _explained(replace(tuning, **given), {**reasons, **dict.fromkeys(given, "set")})


def _explained(tuning: Tuning, reasons: Mapping[str, str]) -> Tuning:
    choices = tuple(Choice(name, str(getattr(tuning, name)).lower(), reasons[name]) for name in NAMES)
    return replace(tuning, choices=choices)


def choose(measured: Measurements) -> Tuning:
    """Return the fastest way to run; of those that are as good, the one with fewer threads, shorter spins and steps.

    Threads that spin long are slow beside other processes, and a step is how long a cancel and a neighbour wait.
    """
    tuning = Tuning(
        threads=_smallest_close(measured.threads_ms),
        spin_count=_smallest_close(measured.spin_ms),
        flash_attention=is_flash_faster(measured.flash_ms),
        step_tokens=_smallest_close({size: 1000 / rate for size, rate in measured.prompt_rates.items()}),
    )
    flash = (("with", measured.flash_ms[True]), ("without", measured.flash_ms[False]))
    reasons = {
        "threads": f"a step of 8 sequences took {_listed(measured.threads_ms, 'ms')}",
        "spin_count": f"a step took {_listed(measured.spin_ms, 'ms')}",
        "flash_attention": "a step of 8 short sequences and one of 8 that share a long prompt took "
        + ", ".join(f"{short:.1f} + {shared:.1f} ms {word}" for word, (short, shared) in flash),
        "step_tokens": f"prompts ran at {_listed(measured.prompt_rates, 'tokens/s')}",
    }
    return _explained(tuning, reasons)


def is_flash_faster(flash_ms: Mapping[bool, tuple[float, float]]) -> bool:
    """Tell whether flash attention pays: it gains where sequences are many and loses where they share much."""
    return sum(flash_ms[True]) < sum(flash_ms[False])


def _smallest_close(costs: Mapping[int, float]) -> int:
    best = min(costs.values())
    return min(value for value, cost in costs.items() if cost <= best * CLOSE)


def _listed(values: Mapping[int, float], unit: str) -> str:
    return ", ".join(f"{value:.1f} {unit} at {key}" for key, value in sorted(values.items()))
