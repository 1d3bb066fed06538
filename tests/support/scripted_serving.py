"""The replicas of the inference services as the orchestrator's port sees them, saying what a test says."""

from dataclasses import replace

from pagantic_common.domain.messages import ModelInfo
from services.orchestrator.ports.serving import ReplicaChange, ReplicaLoad, ReplicaReport, ServedModel

CHAT = ServedModel(ModelInfo("scripted", 8192, ("chat", "tools")), is_loaded=True, memory_bytes=98_000_000, running=1)
EMBEDDER = ServedModel(ModelInfo("embedder", 512, ("embed",)), memory_bytes=83_000_000)
LOAD = ReplicaLoad(
    queued=2,
    queue_capacity=64,
    running=3,
    sequence_capacity=8,
    kv_used_tokens=4096,
    kv_capacity_tokens=16384,
    output_tokens_total=1000,
    pending_prompt_tokens=120,
)


class ScriptedServing:
    """Has one replica, `local`, unless others are given; each of `failures` is the error of one change."""

    def __init__(self, *replicas):
        self.replicas = list(replicas) or [ReplicaReport("local", "local", LOAD, (CHAT, EMBEDDER))]
        self.failures = []
        self.asked = 0

    async def list_replicas(self):
        self.asked += 1
        return self.replicas

    async def load_model(self, model):
        return [self._change(place, model, is_loaded=True) for place in range(len(self.replicas))]

    async def unload_model(self, model):
        return [self._change(place, model, is_loaded=False) for place in range(len(self.replicas))]

    def _change(self, place, model, *, is_loaded):
        replica = self.replicas[place]
        if self.failures:
            return ReplicaChange(replica.address, error=self.failures.pop(0))
        was_loaded = any(one.is_loaded for one in replica.models if one.info.name == model)
        models = [replace(one, is_loaded=is_loaded) if one.info.name == model else one for one in replica.models]
        self.replicas[place] = replace(replica, models=tuple(models))
        return ReplicaChange(replica.address, was_loaded=was_loaded)
