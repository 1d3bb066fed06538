"""Puts the servicer of vLLM's protocol together."""

from __future__ import annotations

from pathlib import Path

from pagantic_common.rpc.access.gate import Guard
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.telemetry.clock import SystemClock
from services.inference.app.models import Models
from services.inference.app.watching.block_events import BlockEvents
from services.inference.app.watching.replica_watch import ReplicaWatch
from services.inference.vllm.events import KvEvents
from services.inference.vllm.servicer import SCOPES, SERVICE_NAME, VllmEngineServicer
from services.inference.vllm.tokenizer_bundle import bundle_tokenizer


def make_registration(
    models: Models, watch: ReplicaWatch, guard: Guard, *, tokenizer_folder: str, has_events: bool
) -> Registration:
    """Return the registration, with a tokenizer to give away unless the folder is empty, and with events of the cache.

    Raises InvalidRequest for a tokenizer that cannot be given away.
    """
    clock = SystemClock()
    bundle = b""
    if tokenizer_folder:
        bundle = bundle_tokenizer(Path(tokenizer_folder))
    events = None
    if has_events:
        events = KvEvents(BlockEvents(models, watch, clock))
    servicer = VllmEngineServicer(models, clock=clock, tokenizer_bundle=bundle, events=events)
    return Registration(SERVICE_NAME, servicer.add_to, SCOPES, guard)
