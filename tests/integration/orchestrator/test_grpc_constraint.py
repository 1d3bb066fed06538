"""What the orchestrator learns from the real constraint service."""

import json

from pagantic_common.testing.server import serving
from services.constraint.__main__ import open_app
from services.constraint.settings import ConstraintSettings
from services.orchestrator.adapters.grpc_constraint import GrpcConstraint
from services.orchestrator.core.model.contract import OutputContract

TAGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
SCHEMA = {"type": "object", "properties": {"tags": TAGS}, "dependentRequired": {"tags": []}}


async def test_keywords_that_the_decoder_does_not_enforce_come_with_their_place():
    async with (
        open_app(ConstraintSettings(port=0, workers=1)) as registrations,
        serving(registrations) as (channel, _),
    ):
        constraint = GrpcConstraint(channel, 5.0)
        compiled = await constraint.compile(OutputContract(schema_json=json.dumps(SCHEMA)))
        assert set(compiled.unsupported) == {"uniqueItems at /properties/tags", "dependentRequired"}
        assert not compiled.is_fully_enforced
        compiled = await constraint.compile(OutputContract(schema_json='{"type":"integer"}'))
        assert (compiled.unsupported, compiled.is_fully_enforced) == ((), True)
