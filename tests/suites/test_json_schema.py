"""JSON-Schema-Test-Suite through ValidateSchema. Schemas that need a remote document are refused on purpose."""

import json
import sys

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


async def decide(stub, path, draft, *, ignore_formats):
    """Yield description, and True where decided as the suite says, False where not, None where refused as remote."""
    for group in json.loads(path.read_text()):
        schema_json = json.dumps(named(group["schema"], draft))
        for case in group["tests"]:
            description = f"{path.name}: {group['description']}: {case['description']}"
            request = rpc.ValidateSchemaRequest(
                document_json=json.dumps(case["data"]), schema_json=schema_json, ignore_formats=ignore_formats
            )
            try:
                reply = await call_unary("constraint", stub.ValidateSchema, request)
            except InvalidRequest as error:
                is_remote = "remote $ref" in str(error) or "dialect is not known" in str(error)
                yield description if is_remote else f"{description}: {error}", None if is_remote else False
            else:
                yield description, reply.valid == case["valid"]


async def run(folder, draft, *, ignore_formats):
    found = {True: [], False: [], None: []}
    async with running() as stub:
        for path in sorted(folder.glob("*.json")):
            async for description, is_right in decide(stub, path, draft, ignore_formats=ignore_formats):
                found[is_right].append(description)
    total = sum(map(len, found.values()))
    text = f"{len(found[True])} passed, {len(found[None])} refused as remote, {len(found[False])} wrong, of {total}"
    return text, found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("draft", DIALECTS)
async def test_every_required_case_is_decided_as_the_suite_says(suites, draft, capsys):
    text, found = await run(suites / "json-schema-test-suite" / "tests" / draft, draft, ignore_formats=True)
    with capsys.disabled():
        sys.stdout.write("\n".join([f"\n{draft}: {text}", *(f"  refused: {name}" for name in found[None]), ""]))
    assert found[True]
    assert found[False] == []


@pytest.mark.timeout(240)
@pytest.mark.parametrize("draft", DIALECTS)
async def test_formats_are_checked(suites, draft, capsys):
    """The optional part: no validator has all of it, and what this one has is worth knowing."""
    folder = suites / "json-schema-test-suite" / "tests" / draft / "optional" / "format"
    text, found = await run(folder, draft, ignore_formats=False)
    with capsys.disabled():
        sys.stdout.write("\n".join([f"\n{draft}, formats: {text}", *(f"  wrong: {name}" for name in found[False]), ""]))
    assert len(found[True]) > 20 * len(found[False])
