"""What an engine keeps of ended requests, on a CPU and on a GPU."""

import pytest

from services.inference.app.draft_engine import CacheLimits
from services.inference.core.tuning import untuned
from services.inference.settings import InferenceSettings
from services.inference.wiring.text_generation import cache_limits

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("settings", "idle_tokens", "parked_mib"),
    [
        ({}, 0, 512),
        ({"gpu_layers": -1}, 4096, 0),
        ({"gpu_layers": 12}, 4096, 0),
        ({"gpu_layers": -1, "prefix_folder": "cells"}, 4096, 512),
        ({"gpu_layers": -1, "max_idle_tokens": 100, "parked_mib": 7}, 100, 7),
        ({"max_idle_tokens": 100, "parked_mib": 0}, 100, 0),
    ],
)
def test_a_gpu_keeps_cells_where_they_are(settings, idle_tokens, parked_mib):
    assert cache_limits(InferenceSettings(**settings), 32768) == CacheLimits(idle_tokens, parked_mib * MIB)


def test_half_of_a_small_cache_is_free_for_requests():
    assert cache_limits(InferenceSettings(gpu_layers=-1), 2048).max_idle_tokens == 1024


@pytest.mark.parametrize(
    ("is_on_gpu", "flash_attention", "step_tokens"), [(False, "false", "64"), (True, "true", "512")]
)
def test_a_gpu_takes_larger_steps(is_on_gpu, flash_attention, step_tokens):
    tuning = untuned(4, is_on_gpu=is_on_gpu)
    values = {choice.name: choice.value for choice in tuning.choices}
    assert (values["flash_attention"], values["step_tokens"]) == (flash_attention, step_tokens)
    assert (tuning.flash_attention, tuning.step_tokens) == (is_on_gpu, int(step_tokens))
