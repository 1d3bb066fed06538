"""Knobs of the inference service, read as PAGANTIC_INFERENCE_<NAME>."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from pagantic_common.settings import ServiceSettings


class InferenceSettings(ServiceSettings):
    """What can be set."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="PAGANTIC_INFERENCE_")

    port: int = Field(50052, ge=0, le=65535, description="port to listen on")
    model_path: str = Field("", description="GGUF file; empty is the bundled SmolLM2-135M-Instruct")
    model_name: str = Field("", description="alias of the model; empty takes its file's name")
    context_tokens: int = Field(4096, ge=64, description="context window; at most what the model was trained on")
    batch_tokens: int = Field(512, ge=16, description="prompt tokens decoded between two looks at cancellation")
    threads: int = Field(0, ge=0, description="threads that decode; 0 is the number of cores")
    gpu_layers: int = Field(0, ge=-1, description="layers kept on the GPU; -1 is all")
    flash_attention: bool = Field(False, description="on a CPU it halves decoding at longer contexts")
    omp_wait_policy: Literal["PASSIVE", "ACTIVE"] = Field(
        "PASSIVE", description="PASSIVE keeps decoding fast beside other busy processes; ACTIVE spins"
    )
    queue_capacity: int = Field(64, ge=0, description="requests that may wait; one more is INFERENCE_OVERLOADED")
    max_candidates: int = Field(64, ge=1, description="most candidates of one request")
    self_check: bool = Field(True, description="decode in a child process first, to find a CPU that the build dies on")
