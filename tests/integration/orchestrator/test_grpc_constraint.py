"""What the orchestrator learns from the real constraint service."""

import json

from pagantic_common.domain.text.citations import CitationPolicy
from pagantic_common.domain.validation import Guarantee
from pagantic_common.grammar.engine_text import byte_tokenizer, start_matcher
from pagantic_common.testing.server import serving
from services.constraint.__main__ import open_app
from services.constraint.settings import ConstraintSettings
from services.orchestrator.adapters.grpc_constraint import GrpcConstraint
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.request import Mode, Request

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


async def test_citations_are_compiled_and_enforced_with_the_same_sources():
    sources = ["The red hat is in the box."]
    output = OutputContract(citations=CitationPolicy(max_claims=2))
    asked = Request("r1", Mode.CHAT, (), output=output)
    answer = '{"in_sources": true, "claims": [{"source": 1, "quote": "red hat is", "text": "x"}]}'
    async with (
        open_app(ConstraintSettings(port=0, workers=1)) as registrations,
        serving(registrations) as (channel, _),
    ):
        constraint = GrpcConstraint(channel, 5.0)
        compiled = await constraint.compile(output, sources)
        assert compiled.is_fully_enforced
        matcher = start_matcher(compiled.engine_text, byte_tokenizer())
        assert matcher.consume_tokens(list(answer.encode()))
        assert matcher.is_stopped()
        enforced = await constraint.enforce(answer, asked, is_decoder_enforced=True, sources=sources)
        assert (enforced.valid, enforced.guarantee) == (True, Guarantee.ENFORCED)
        refused = await constraint.enforce(answer, asked, is_decoder_enforced=True, sources=["A blue hat is here."])
        assert (refused.valid, refused.guarantee) == (False, Guarantee.PARTIAL)
