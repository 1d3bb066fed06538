"""Finds out by measurement how to run a model on this machine, and remembers it. Does not load the engine itself."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.telemetry.logging import get_logger
from services.inference.core.tuning import (
    DEFAULT_SPIN_COUNT,
    Choice,
    Measurements,
    Tuning,
    choose,
    is_flash_faster,
    untuned,
)

PROBE = "services.inference.adapters.tuning_probe"
PROBE_TIMEOUT_S = 300.0
OTHER_SPIN_COUNTS = (0, 100)  # longer spins are a little faster on an idle machine, and collapse beside other work
WHAT_IS_MEASURED = "2"  # raised when probes change, so that what older ones found is not used
STEP_SIZES = (64, 128, 256)
HASHED_BYTES = 1024 * 1024

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a measurement holds for: this machine's cores and one model."""

    model_path: Path
    gpu_layers: int

    @property
    def cores(self) -> int:
        """Cores that this process may use."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def key(self) -> str:
        """Return a name for this machine, model and engine."""
        with self.model_path.open("rb") as file:
            beginning = file.read(HASHED_BYTES)
        parts = (
            WHAT_IS_MEASURED,
            importlib.metadata.version("llama-cpp-python"),
            _cpu_name(),
            str(self.cores),
            str(self.gpu_layers),
            str(self.model_path.stat().st_size),
            hashlib.sha256(beginning).hexdigest(),
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def tune(machine: Machine, folder: Path) -> Tuning:
    """Return what was measured here before, or measure it: some seconds with a small model, minutes with a large one.

    Raises PreconditionFailed when the engine dies while it decodes.
    """
    file = folder / f"{machine.key()}.json"
    try:
        return _read(json.loads(file.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    log.info("measuring how the engine runs best on this machine", model=machine.model_path.name)
    prober = _Prober(machine)
    if not prober.loads:
        return untuned(machine.cores, "there was nothing to measure: the model does not decode text")
    tuning = _measure(machine, prober)
    for choice in tuning.choices:
        log.info("measured", setting=choice.name, value=choice.value, reason=choice.reason)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(json.dumps(asdict(tuning), indent=1))
        partial.replace(file)
    except OSError as error:
        log.warning("what was measured cannot be remembered", error=str(error))
    return tuning


def check(machine: Machine) -> bool:
    """Return whether the engine decodes here with its extra buffer types; it does without them if False.

    Raises PreconditionFailed when it dies either way.
    """
    return _Prober(machine).use_extra_bufts


def _measure(machine: Machine, prober: _Prober) -> Tuning:
    flash = {is_on: prober.probe(flash_attention=is_on, sizes=STEP_SIZES) for is_on in (False, True)}
    flash_ms = {is_on: (float(probe["batch_ms"]), float(probe["shared_ms"])) for is_on, probe in flash.items()}
    is_on = is_flash_faster(flash_ms)
    usual = flash[is_on]
    spin_ms = {DEFAULT_SPIN_COUNT: usual["row_ms"]} | {
        count: prober.probe(spin_count=count, flash_attention=is_on)["row_ms"] for count in OTHER_SPIN_COUNTS
    }
    threads_ms = {machine.cores: usual["batch_ms"]} | {
        count: prober.probe(threads=count, flash_attention=is_on)["batch_ms"]
        for count in {machine.cores // 2} - {0, machine.cores}
    }
    rates = {int(size): float(rate) for size, rate in usual["prompt_rates"].items()}
    tuning = choose(Measurements(threads_ms, spin_ms, flash_ms, rates))
    return replace(tuning, use_extra_bufts=prober.use_extra_bufts)


def cache_folder() -> Path:
    """Folder for what can be made again: pagantic in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagantic"


class _Prober:
    """Runs probes, without extra buffer types if only so the engine lives."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.use_extra_bufts = True
        code, _ = self._run({}, DEFAULT_SPIN_COUNT, ())
        self.loads = code == 0
        if code >= 0:  # it lived; a model that does not load is told of by the service, in the engine's words
            return
        self.use_extra_bufts = False
        reduced, _ = self._run({}, DEFAULT_SPIN_COUNT, ())
        self.loads = reduced == 0
        if reduced != 0:
            raise PreconditionFailed(
                f"the engine dies on this machine (exit {code}) while it decodes {machine.model_path.name!r}: rebuild "
                "it with `make clean setup`, or use another model",
                code=ErrorCode.CONFIG_NO_ENGINE,
            )
        log.warning("the engine dies with its extra buffer types: going on without them", exit_code=code)

    def probe(
        self,
        *,
        spin_count: int = DEFAULT_SPIN_COUNT,
        threads: int = 0,
        flash_attention: bool = False,
        sizes: tuple[int, ...] = (),
    ) -> dict[str, Any]:
        """Return what a probe measured; raises PreconditionFailed when it dies."""
        options = {"threads": threads or self._machine.cores, "flash_attention": flash_attention}
        code, output = self._run(options, spin_count, sizes)
        if code != 0:
            raise PreconditionFailed(
                f"the engine died (exit {code}) while it was measured: set PAGANTIC_INFERENCE_TUNING=false",
                code=ErrorCode.CONFIG_NO_ENGINE,
            )
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        return result

    def _run(self, options: Mapping[str, object], spin_count: int, sizes: tuple[int, ...]) -> tuple[int, str]:
        order = {
            "path": str(self._machine.model_path),
            "options": {
                **options,
                "gpu_layers": self._machine.gpu_layers,
                "use_extra_bufts": self.use_extra_bufts,
            },
            "sizes": sizes,
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", PROBE, json.dumps(order)],
                env={**os.environ, "GOMP_SPINCOUNT": str(spin_count)},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=PROBE_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return -1, ""
        return done.returncode, done.stdout.decode("utf-8", "replace")


def _read(stored: dict[str, Any]) -> Tuning:
    return Tuning(**{**stored, "choices": tuple(Choice(**choice) for choice in stored["choices"])})


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
