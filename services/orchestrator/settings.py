"""Knobs of the orchestrator, read as PAGANTIC_ORCHESTRATOR_<NAME>."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from pagantic_common.settings import ServiceSettings, state_folder
from services.orchestrator.core.planning import Planner


class OrchestratorSettings(ServiceSettings):
    """What can be set."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="PAGANTIC_ORCHESTRATOR_")

    port: int = Field(50051, ge=0, le=65535, description="port to listen on")
    inference_address: str = Field("127.0.0.1:50052", description="address of the inference service")
    constraint_address: str = Field("127.0.0.1:50053", description="address of the constraint service")
    context_address: str = Field("127.0.0.1:50054", description="address of the context service")
    rerank_address: str = Field("127.0.0.1:50055", description="address of the rerank service")
    tools_address: str = Field("127.0.0.1:50056", description="address of the tools service")
    journal_path: Path = Field(
        default_factory=lambda: state_folder() / "orchestrator" / "journal.sqlite3",
        description="SQLite file of executions, events and conversations",
    )
    retention_s: float = Field(86_400.0, gt=0, description="how long ended executions are kept; conversations stay")
    planner: Planner = Field(Planner.STATIC, description="who plans PLAN requests without a plan: static or model")
    max_plan_steps: int = Field(64, ge=1, description="steps of one plan; a longer one is rejected")
    max_step_s: float = Field(0.0, ge=0, allow_inf_nan=False, description="longest time of a plan's step; 0 is any")
    max_running: int = Field(256, ge=1, description="executions that may run at once; one more is RESOURCE_EXHAUSTED")
