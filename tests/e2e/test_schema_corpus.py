"""Delivered under a schema, it satisfies the schema: many schemas, the real model, and another library as the judge.

PAGANTIC_SUITES names the public suites. Some schemas are decoded, and all of them in a whole run, which takes many
minutes.
"""

import json
import os
import re
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema_rs
import pytest

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from tests.support.examples import sample
from tests.support.schema_corpus import OWN, of_suites

ROOT = Path(__file__).resolve().parents[2]
SUITES = Path(os.environ.get("PAGANTIC_SUITES") or ROOT.parent / "shared" / "suites")
CLIENTS = 8
SAMPLE = 4  # So many schemas of the suites are decoded.
SATISFIED = {contract_pb2.GUARANTEE_ENFORCED, contract_pb2.GUARANTEE_VALIDATED, contract_pb2.GUARANTEE_REPAIRED}


def corpus():
    schemas = of_suites(SUITES) if SUITES.is_dir() else []
    return [*sample(OWN, 4), *sample(schemas, max(1, len(schemas) // SAMPLE))]


def request(number, schema):
    hints = execution_pb2.ExecutionHints(max_tokens=96, temperature=0.8, seed=number)
    return execution_pb2.SystemRequest(
        mode=execution_pb2.MODE_STRUCTURED,
        messages=[message_pb2.Message(role=message_pb2.ROLE_USER, content="Give a short example as JSON.")],
        hints=hints,
        output=contract_pb2.OutputContract(schema_json=json.dumps(schema)),
        retry=plan_pb2.RetryPolicy(max_retries=0),
    )


def satisfies(schema, text):
    import jsonschema  # noqa: PLC0415 - its grammars take seconds in every worker, which imports every test

    name = schema.get("$schema") if isinstance(schema, dict) else None
    cls = jsonschema.validators.validator_for({"$schema": name} if name else {}, jsonschema.Draft202012Validator)
    try:
        return cls(schema, format_checker=cls.FORMAT_CHECKER).is_valid(json.loads(text))
    except re.error:  # a pattern that Python's dialect does not have
        return jsonschema_rs.validator_for(schema).is_valid(json.loads(text))


@pytest.mark.sampled
@pytest.mark.timeout(1800)
def test_no_delivered_output_violates_its_schema(channel, capsys):
    stub = rpc.OrchestratorServiceStub(channel)
    schemas = corpus()

    def decode(item):
        return stub.Execute(request(*item), timeout=300)

    with ThreadPoolExecutor(CLIENTS) as pool:
        responses = list(pool.map(decode, enumerate(schemas)))
    found, wrong = Counter(), []
    for schema, response in zip(schemas, responses, strict=True):
        guarantee = response.validation.guarantee
        if response.HasField("error"):
            found[error_pb2.ErrorCode.Name(response.error.code)] += 1
            assert guarantee not in SATISFIED, schema
            continue
        found[contract_pb2.Guarantee.Name(guarantee)] += 1
        assert guarantee in SATISFIED, schema
        if not satisfies(schema, response.structured_output_json):
            wrong.append((schema, response.structured_output_json))
    with capsys.disabled():
        sys.stdout.write(f"\n{len(schemas)} schemas decoded: {dict(found)}, {len(wrong)} wrong\n")
    assert wrong == []
    assert sum(found[contract_pb2.Guarantee.Name(guarantee)] for guarantee in SATISFIED) > len(schemas) / 2
