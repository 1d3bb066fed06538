"""Settings of the constraint service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from pydantic import Field, ImportString
from pydantic_settings import SettingsConfigDict

from pagantic_common.domain.defaults import PORTS
from pagantic_common.settings import CallerSettings, InnerSettings
from pagantic_common.workers.worker_process import WorkerLimits
from services.constraint.core.model import Limits

# These limits apply to the work on one schema, grammar, rule or text. Ordinary input stays far below them; they stop
# hostile input.
MAX_WORK_S = 1.5
MAX_WORK_MIB = 512
MAX_SCHEMA_BYTES = 256 * 1024  # maximum size of a schema, grammar, pattern or list of values
MAX_SCHEMA_DEPTH = 64  # limited because the libraries that read schemas recurse


class ConstraintSettings(InnerSettings, CallerSettings):
    """Settings, read from PAGANTIC_CONSTRAINT_<NAME>."""

    model_config = SettingsConfigDict(env_prefix="PAGANTIC_CONSTRAINT_", frozen=True, extra="ignore")

    port: int = Field(PORTS["constraint"], ge=0, le=65535, description="port to listen on; 0 takes a free one")
    max_output_bytes: int = Field(1024 * 1024, ge=1, description="largest output or document looked at")
    workers: int = Field(2, ge=1, le=256, description="processes that work on schemas, grammars, rules and texts")
    queue_capacity: int = Field(256, ge=1, description="pieces of work that wait for a process; more are refused")
    judge_timeout_s: float = Field(
        60.0, gt=0, allow_inf_nan=False, description="time for one verdict of the semantic stage"
    )
    grammars_folder: Path | None = Field(None, description="folder of named grammars, <name>.gbnf; unset is none")
    repair_strategies: tuple[ImportString[Callable[..., str]], ...] = Field(
        (), description='JSON list of "module.function" that try to repair what JSON repair does not'
    )

    def worker_limits(self, module: str) -> WorkerLimits:
        """Return the limits of the worker processes that run a module, and the folders of its repair strategies."""
        folders = tuple(sorted({folder for strategy in self.repair_strategies for folder in _folders_of(strategy)}))
        return WorkerLimits(self.workers, MAX_WORK_S, MAX_WORK_MIB, self.queue_capacity, module, folders=folders)

    @property
    def limits(self) -> Limits:
        """The limits on sources and outputs."""
        return Limits(MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, self.max_output_bytes)


def _folders_of(function: Callable[..., str]) -> Iterator[str]:
    """Yield the folders that contain the package of a function, such as a folder of PYTHONPATH."""
    spec = find_spec(function.__module__.partition(".")[0])
    if spec is not None and (spec.has_location or spec.submodule_search_locations):
        places = spec.submodule_search_locations or filter(None, [spec.origin])
        yield from (str(Path(place).parent) for place in places)
