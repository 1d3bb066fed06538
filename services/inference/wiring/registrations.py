"""Puts the servicers of the inference service together: its own contract and, where it is set, vLLM's protocol."""

from __future__ import annotations

from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tls.service_callers import guard_of
from pagantic_common.telemetry.clock import SystemClock
from services.inference.app.models import Models
from services.inference.app.tuning import Tuner
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
        # Its messages are imported only where they are served.
        from services.inference.vllm.registration import make_registration  # noqa: PLC0415

        vllm = make_registration(
            models,
            watch,
            guard,
            tokenizer_folder=settings.vllm_tokenizer_folder,
            has_events=settings.vllm_kv_events,
        )
        registrations.append(vllm)
    return registrations
