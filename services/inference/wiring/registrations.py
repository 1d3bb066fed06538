"""Puts the servicers of the inference service together: its own contract and, where it is set, vLLM's protocol."""

from __future__ import annotations

from pathlib import Path

from pagantic_common.rpc.access.gate import Guard
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tls.service_callers import guard_of
from pagantic_common.telemetry.clock import SystemClock
from services.inference.app.models import Models
from services.inference.app.tuning import Tuner
from services.inference.app.watching.block_events import BlockEvents
from services.inference.app.watching.replica_watch import ReplicaWatch
from services.inference.app.watching.watchdog import wait_until_broken
from services.inference.servicer import SCOPES, SERVICE_NAME, InferenceServicer
from services.inference.settings import InferenceSettings


def make_registrations(settings: InferenceSettings, models: Models, tuner: Tuner) -> list[Registration]:
    """Return the registrations of the server; raises InvalidRequest for a tokenizer that cannot be given away."""
    guard = guard_of("inference", settings)
    watch = ReplicaWatch(models, SystemClock())
    registrations = [
        Registration(
            SERVICE_NAME,
            InferenceServicer(models, tuner, watch, max_priority=settings.max_priority).add_to,
            SCOPES,
            guard,
            begin_drain=watch.stop,
            wait_until_broken=lambda: wait_until_broken(
                models, step_timeout_s=settings.step_timeout_s, clock=SystemClock()
            ),
        )
    ]
    if settings.vllm_protocol:
        registrations.append(_vllm_registration(settings, models, watch, guard))
    return registrations


def _vllm_registration(settings: InferenceSettings, models: Models, watch: ReplicaWatch, guard: Guard) -> Registration:
    """Return the registration of vLLM's protocol; its messages are imported only where it is served."""
    from services.inference.vllm import servicer as vllm  # noqa: PLC0415
    from services.inference.vllm.tokenizer_bundle import bundle_tokenizer  # noqa: PLC0415

    bundle = b""
    if settings.vllm_tokenizer_folder:
        bundle = bundle_tokenizer(Path(settings.vllm_tokenizer_folder))
    block_events = None
    if settings.vllm_kv_events:
        block_events = BlockEvents(models, watch, SystemClock())
    servicer = vllm.VllmEngineServicer(models, clock=SystemClock(), tokenizer_bundle=bundle, block_events=block_events)
    return Registration(vllm.SERVICE_NAME, servicer.add_to, vllm.SCOPES, guard)
