"""Measures in a child process how a model runs fastest, and stores the result. Does not load the engine itself."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.metadata
import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.run import command
from pagantic_common.settings import cache_folder
from pagantic_common.telemetry.logging import get_logger
from services.inference.adapters.machine import CpuClock, core_count, cpu_name, free_memory_bytes, spare_cores
from services.inference.core.tuning import Choice, Measurements, Round, Tuning, Way
from services.inference.ports import MeasuringFailed

PROBE = f"{__package__}.tuning_probe"
CHECK_TIMEOUT_S = 300.0
ROUND_TIMEOUT_S = 120.0
OBSERVATION_S = 1.0
PROBE_VERSION = "5"  # incremented with every change of the probe, to discard older results
STEP_SIZES = (64, 128, 256)
LONG_TOKENS = 1536  # flash attention may be faster at 512 tokens but slower at this length
HASHED_BYTES = 1024 * 1024
NICENESS = 10
WEIGHTS_FACTOR = 1.2  # weights repacked for the processor need more memory
PROBE_BYTES = 512 * 1024 * 1024  # memory of two small contexts and an interpreter

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the model of a measurement."""

    model_path: Path
    gpu_layers: int
    cache_type: str = "f16"

    @property
    def cores(self) -> int:
        """The number of physical cores that this process may use."""
        return core_count()

    def key(self) -> str:
        """Return a name that identifies this machine, the model and the engine."""
        with self.model_path.open("rb") as file:
            beginning = file.read(HASHED_BYTES)
        parts = (
            PROBE_VERSION,
            _engine_build(),
            cpu_name(),
            str(self.cores),
            str(self.gpu_layers),
            self.cache_type,
            str(self.model_path.stat().st_size),
            hashlib.sha256(beginning).hexdigest(),
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _engine_build() -> str:
    """Return the engine's version and the recorded hashes of its libraries. The hashes depend on the build flags."""
    engine = importlib.metadata.distribution("llama-cpp-python")
    record = engine.read_text("RECORD") or ""
    return "\n".join([engine.version, *(line for line in record.splitlines() if line.startswith("llama_cpp/lib/"))])


@dataclass(frozen=True, slots=True)
class StoredTuning:
    """The stored results for a model on this machine: its tuning, and whether it runs with extra buffer types."""

    use_extra_bufts: bool
    tuning: Tuning | None = None


class TuningFile:
    """Stores the results for one model on this machine. `use_extra_bufts` is stored with every tuning."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine = machine
        self.folder = folder
        self.use_extra_bufts = True
        self._file = folder / f"{machine.key()}.json"

    def load(self) -> StoredTuning | None:
        """Return the stored results, or None if there is no readable file."""
        try:
            stored = json.loads(self._file.read_text(encoding="utf-8"))
            tuning = stored["tuning"]
            if tuning is not None:
                choices = tuple(Choice(**choice) for choice in tuning["choices"])
                ways = tuple(Way(tuple(way["step_ms"]), way["step_tokens"]) for way in tuning["ways"])
                tuning = Tuning(**{**tuning, "choices": choices, "ways": ways})
            return StoredTuning(stored["use_extra_bufts"], tuning)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, tuning: Tuning | None) -> str:
        """Store a tuning, or None if the machine has no tuning.

        Returns a description of the problem if storing fails, or an empty string.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = self._file.with_suffix(f".{os.getpid()}.tmp")
            stored = asdict(StoredTuning(self.use_extra_bufts, tuning))
            partial.write_text(json.dumps(stored, indent=1), encoding="utf-8")
            partial.replace(self._file)
        except OSError as error:
            return f"{self.folder} cannot be written ({(error.strerror or str(error)).lower()})"
        return ""


class ChildProber:
    """A Prober that measures rounds in a child process. The process runs only while the rounds are read."""

    def __init__(self, machine: Machine, use_extra_bufts: Callable[[], bool]) -> None:
        self._machine = machine
        self._use_extra_bufts = use_extra_bufts

    async def why_not(self) -> str:
        """Return the reason why measuring is impossible now, or an empty string if it is possible.

        Measuring is impossible if there is too little memory or the machine is busy.
        """
        needed = int(self._machine.model_path.stat().st_size * WEIGHTS_FACTOR) + PROBE_BYTES
        if (free := free_memory_bytes()) < needed:
            return f"{free // 2**20} MiB of memory are free, measuring takes {needed // 2**20} MiB"
        clock = CpuClock.read()
        await asyncio.sleep(OBSERVATION_S)
        observed = Round(Measurements({}, {}, {}), clock.others_cores(), spare_cores(self._machine.cores))
        if observed.is_quiet:
            return ""
        return f"the machine is busy: other processes use {observed.others_cores:.1f} cores"

    async def rounds(self) -> AsyncGenerator[Round, None]:
        """Yield rounds. Closing the generator ends the child process at once.

        Raises MeasuringFailed if the child process dies.
        """
        cores = self._machine.cores
        threads = (cores, *({cores // 2} - {0, cores}))
        child = await _start(self._machine, self._use_extra_bufts(), threads=threads)
        try:
            while line := await _read_line(child):
                yield _round_of(json.loads(line))
            raise MeasuringFailed(f"the measuring process ended with {await child.wait()}")
        finally:
            await _end(child)


async def check_engine(machine: Machine) -> bool:
    """Return whether the engine can use its extra buffer types here, or must run without them.

    Raises PreconditionFailed if the engine's process dies both with and without these types.
    """
    code = await _check(machine, use_extra_bufts=True)
    if code >= 0:  # the engine did not die; the service itself reports a model that does not load
        return True
    if await _check(machine, use_extra_bufts=False) != 0:
        raise PreconditionFailed(
            f"the engine dies on this machine (exit {code}) while it decodes {machine.model_path.name!r}: rebuild "
            "it with `make clean setup`, or use another model",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )
    log.warning("the engine dies with its extra buffer types: it runs without them", exit_code=code)
    return False


def tuning_folder() -> Path:
    """Return the folder for results, which lies in the user's cache."""
    return cache_folder() / "tuning"


async def _check(machine: Machine, *, use_extra_bufts: bool) -> int:
    child = await _start(machine, use_extra_bufts)
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await child.wait()
    except TimeoutError:
        return -1
    finally:
        await _end(child)


async def _start(
    machine: Machine, use_extra_bufts: bool, *, threads: tuple[int, ...] = ()
) -> asyncio.subprocess.Process:
    order = {
        "path": str(machine.model_path),
        "options": {
            "gpu_layers": machine.gpu_layers,
            "use_extra_bufts": use_extra_bufts,
            "threads": machine.cores,
            "key_type": machine.cache_type,
            "value_type": machine.cache_type,
        },
        "threads": threads,
        "sizes": STEP_SIZES,
        "long_tokens": LONG_TOKENS,
        "parent": os.getpid(),
        "nice": NICENESS if threads else 0,
    }
    return await asyncio.create_subprocess_exec(
        *command(PROBE, json.dumps(order)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def _read_line(child: asyncio.subprocess.Process) -> bytes:
    assert child.stdout is not None  # noqa: S101 - the child has a pipe
    try:
        async with asyncio.timeout(ROUND_TIMEOUT_S):
            return await child.stdout.readline()
    except TimeoutError:
        raise MeasuringFailed(f"a round takes longer than {ROUND_TIMEOUT_S:.0f} s") from None


async def _end(child: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    await child.wait()


def _round_of(read: Mapping[str, Any]) -> Round:
    measured = Measurements(
        {int(count): float(ms) for count, ms in read["threads_ms"].items()},
        {bool(int(is_on)): tuple(map(float, row)) for is_on, row in read["flash_ms"].items()},
        {
            bool(int(is_on)): {int(size): float(rate) for size, rate in row.items()}
            for is_on, row in read["prompt_rates"].items()
        },
    )
    return Round(measured, float(read["others_cores"]), float(read["spare_cores"]))
