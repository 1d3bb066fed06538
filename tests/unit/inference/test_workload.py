"""Loads add up, over models of both kinds."""

import dataclasses

from pagantic_common.domain.messages import ModelInfo
from services.inference.app.models import Models, ModelSpec, ServedModel
from services.inference.app.workload import Load


class Busy:
    def __init__(self, load):
        self._load = load

    def load(self):
        return self._load

    async def close(self):
        pass


async def test_the_service_is_as_busy_as_its_loaded_models_together():
    names = [field.name for field in dataclasses.fields(Load)]
    loads = {
        "a": Load(*range(1, 1 + len(names))),
        "b": Load(*range(100, 100 + len(names))),
        "c": Load(queued_requests=9),
    }

    async def load(spec):
        return ServedModel(spec.info, Busy(loads[spec.info.name]))

    models = Models([ModelSpec(ModelInfo(name=name, context_window=8), 0) for name in loads], load)
    assert models.load() == Load()
    async with models.use("a"), models.use("b"):  # c is not loaded
        both = models.load()
    assert [getattr(both, name) for name in names] == [101 + 2 * index for index in range(len(names))]
    await models.close()
