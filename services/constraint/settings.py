"""Settings of the constraint service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import Field, ImportString
from pydantic_settings import SettingsConfigDict

from pagantic_common.domain.defaults import PORTS
from pagantic_common.settings import CallerSettings, InnerSettings
from pagantic_common.workers.worker_process import WorkerLimits
from services.constraint.core.model import Limits


class ConstraintSettings(InnerSettings, CallerSettings):
    """Read from PAGANTIC_CONSTRAINT_<NAME>."""

    model_config = SettingsConfigDict(env_prefix="PAGANTIC_CONSTRAINT_", frozen=True, extra="ignore")

    port: int = Field(PORTS["constraint"], ge=0, le=65535, description="port to listen on; 0 takes a free one")
    max_schema_bytes: int = Field(256 * 1024, ge=1, description="largest schema, grammar, pattern or list of values")
    max_schema_depth: int = Field(64, ge=1, le=200, description="deepest nesting of a schema")
    max_output_bytes: int = Field(1024 * 1024, ge=1, description="largest output or document looked at")
    max_work_s: float = Field(
        1.5,
        ge=0.05,
        le=600,
        allow_inf_nan=False,
        description="longest time that work on one schema, grammar, rule or text takes",
    )
    max_work_mib: int = Field(512, ge=64, description="most memory that such work takes, in MiB")
    workers: int = Field(2, ge=1, le=256, description="processes that do such work")
    queue_capacity: int = Field(256, ge=1, description="pieces of work that wait for a process; more are refused")
    compile_cache_mib: int = Field(64, ge=1, description="memory for compiled sources that are kept, in MiB")
    judge_timeout_s: float = Field(
        60.0, gt=0, allow_inf_nan=False, description="time for one verdict of the semantic stage"
    )
    grammars_folder: Path | None = Field(None, description="folder of named grammars, <name>.gbnf; unset is none")
    repair_strategies: tuple[ImportString[Callable[..., str]], ...] = Field(
        (), description='JSON list of "module.function" that try to repair what JSON repair does not'
    )

    def worker_limits(self, module: str) -> WorkerLimits:
        """Return the limits of the processes that do the work of a module."""
        return WorkerLimits(self.workers, self.max_work_s, self.max_work_mib, self.queue_capacity, module)

    @property
    def limits(self) -> Limits:
        """The limits of sources and outputs."""
        return Limits(self.max_schema_bytes, self.max_schema_depth, self.max_output_bytes)
