"""Tuning with the real engine: measured once, remembered, and alive where a build may die."""

import json

import pytest

from pagantic_common.domain.errors import PreconditionFailed
from services.inference.adapters import tuning
from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.tuning import Machine, tune


def test_a_machine_is_measured_once_and_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "OTHER_SPIN_COUNTS", (0,))
    monkeypatch.setattr(tuning, "STEP_SIZES", (32,))
    machine = Machine(find_default_model(), gpu_layers=0)
    measured = tune(machine, tmp_path)
    assert measured.threads in {machine.cores, machine.cores // 2}
    assert measured.step_tokens == 32
    assert all("ms" in choice.reason or "tokens/s" in choice.reason for choice in measured.choices)
    monkeypatch.setattr(tuning, "PROBE", "no.such.module")
    assert tune(machine, tmp_path) == measured
    (kept,) = tmp_path.iterdir()
    kept.write_text("{")
    assert (
        tune(machine, tmp_path).choices[0].reason.startswith("there was nothing to measure")
    )  # a child that cannot measure


def test_an_engine_that_dies_only_with_extra_buffers_goes_without(monkeypatch):
    def run(self, _options, _spin_count, _sizes):
        return (-11, "") if self.use_extra_bufts else (0, json.dumps({}))

    monkeypatch.setattr(tuning._Prober, "_run", run)
    assert tuning.check(Machine(find_default_model(), 0)) is False
    monkeypatch.setattr(tuning._Prober, "_run", lambda *_args: (-11, ""))
    with pytest.raises(PreconditionFailed, match="dies on this machine"):
        tuning.check(Machine(find_default_model(), 0))
