"""Settings of the constraint service."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from pagantic_common.settings import ServiceSettings


class ConstraintSettings(ServiceSettings):
    """Read from PAGANTIC_CONSTRAINT_<NAME>."""

    model_config = SettingsConfigDict(env_prefix="PAGANTIC_CONSTRAINT_", frozen=True, extra="ignore")

    port: int = Field(50053, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    max_schema_bytes: int = Field(256 * 1024, ge=1, description="largest schema, grammar, pattern or list of values")
    max_schema_depth: int = Field(64, ge=1, le=200, description="deepest nesting of a schema")
    max_output_bytes: int = Field(1024 * 1024, ge=1, description="largest output or document looked at")
    max_match_s: float = Field(2.0, gt=0, description="longest time that matching a text with a grammar may take")
    compile_cache_entries: int = Field(256, ge=1, description="compiled sources kept")
    grammars_folder: Path | None = Field(None, description="folder of named grammars, <name>.gbnf; unset is none")
