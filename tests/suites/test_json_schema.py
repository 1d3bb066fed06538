"""JSON-Schema-Test-Suite through ValidateSchema. Schemas that need a remote document are refused on purpose."""

import json
import sys
from collections import Counter

import pytest

from pagantic.constraint.v1 import constraint_service_pb2 as rpc
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.call import call_unary
from tests.support.constraint_app import running

DIALECTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}


def named(schema, draft):
    """Name the schema's dialect, as users of an older one do; booleans cannot."""
    if draft == "draft2020-12" or not isinstance(schema, dict) or "$schema" in schema:
        return schema
    return {"$schema": DIALECTS[draft], **schema}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("draft", DIALECTS)
async def test_every_required_case_is_decided_as_the_suite_says(suites, draft, capsys):
    passed, wrong, refused = 0, [], Counter()
    async with running() as stub:
        for path in sorted((suites / "json-schema-test-suite" / "tests" / draft).glob("*.json")):
            for group in json.loads(path.read_text()):
                schema_json = json.dumps(named(group["schema"], draft))
                for case in group["tests"]:
                    request = rpc.ValidateSchemaRequest(document_json=json.dumps(case["data"]), schema_json=schema_json)
                    try:
                        reply = await call_unary("constraint", stub.ValidateSchema, request)
                    except InvalidRequest as error:
                        reason = "remote" if "remote $ref" in str(error) else f"{error.code}: {error}"
                        refused[path.name, group["description"], reason] += 1
                        continue
                    if reply.valid == case["valid"]:
                        passed += 1
                    else:
                        wrong.append((path.name, group["description"], case["description"]))
    total = passed + len(wrong) + refused.total()
    lines = [f"{draft}: {passed} passed, {refused.total()} refused, {len(wrong)} wrong, of {total}"]
    lines += [f"  refused ({reason}): {file}: {group} ({count})" for (file, group, reason), count in refused.items()]
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines) + "\n")
    assert wrong == []
    assert {key for key in refused if key[2] != "remote"} == set()
