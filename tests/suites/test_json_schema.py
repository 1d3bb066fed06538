"""JSON-Schema-Test-Suite through ValidateSchema. Schemas that need a remote document are refused on purpose.

What decoding derives under a schema that it enforces all of must be valid, whatever the draft.
"""

import json
import sys
from functools import partial

import pytest

from pagantic.constraint.v1 import constraint_service_pb2 as rpc
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.call import call_unary
from services.constraint.core.compilation import Source, SourceKind, compile_source
from services.constraint.core.grammars import derives
from services.constraint.core.model import Limits
from tests.support.constraint_app import running
from tests.support.patience import until_told

DIALECTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
}
# The dialects that people use; make test-whole tries the others too.
IN_USE = {"draft2020-12", "draft7"}
DRAFTS = [pytest.param(draft, marks=() if draft in IN_USE else pytest.mark.whole) for draft in DIALECTS]


def named(schema, draft):
    """Name the schema's dialect, as users of an older one do; booleans cannot."""
    if draft == "draft2020-12" or not isinstance(schema, dict) or "$schema" in schema:
        return schema
    return {"$schema": DIALECTS[draft], **schema}


async def decide(stub, path, draft, *, ignore_formats):
    """Yield description, and True where decided as the suite says, False where not, None where remote."""
    for group in json.loads(path.read_text()):
        schema_json = json.dumps(named(group["schema"], draft))
        for case in group["tests"]:
            description = f"{path.name}: {group['description']}: {case['description']}"
            request = rpc.ValidateSchemaRequest(
                document_json=json.dumps(case["data"]), schema_json=schema_json, ignore_formats=ignore_formats
            )
            try:
                reply = await until_told(partial(call_unary, "constraint", stub.ValidateSchema, request))
            except InvalidRequest as error:
                is_remote = "remote $ref" in str(error)
                yield description if is_remote else f"{description}: {error}", None if is_remote else False
            else:
                # A meta-schema of the suite's own, which is remote: the schema is read as 2020-12, and says so.
                yield description, None if reply.warnings else reply.valid == case["valid"]


async def run(folder, draft, *, ignore_formats):
    found = {True: [], False: [], None: []}
    async with running() as stub:
        for path in sorted(folder.glob("*.json")):
            async for description, is_right in decide(stub, path, draft, ignore_formats=ignore_formats):
                found[is_right].append(description)
    total = sum(map(len, found.values()))
    text = (
        f"{len(found[True])} passed, {len(found[None])} need a remote document, {len(found[False])} wrong, of {total}"
    )
    return text, found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("draft", DRAFTS)
async def test_every_required_case_is_decided_as_the_suite_says(suites, draft, capsys):
    text, found = await run(suites / "json-schema-test-suite" / "tests" / draft, draft, ignore_formats=True)
    with capsys.disabled():
        sys.stdout.write("\n".join([f"\n{draft}: {text}", *(f"  remote: {name}" for name in found[None]), ""]))
    assert found[True]
    assert found[False] == []


@pytest.mark.timeout(240)
@pytest.mark.parametrize("draft", DRAFTS)
async def test_formats_are_checked(suites, draft, capsys):
    """The optional part: no validator has all of it, and what this one has is worth knowing."""
    folder = suites / "json-schema-test-suite" / "tests" / draft / "optional" / "format"
    text, found = await run(folder, draft, ignore_formats=False)
    with capsys.disabled():
        sys.stdout.write("\n".join([f"\n{draft}, formats: {text}", *(f"  wrong: {name}" for name in found[False]), ""]))
    assert len(found[True]) > 20 * len(found[False])


LIMITS = Limits(max_schema_bytes=1_000_000, max_schema_depth=64, max_output_bytes=100_000)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("draft", DRAFTS)
def test_what_decoding_derives_under_a_schema_that_it_enforces_is_valid(suites, draft, capsys):
    enforced = compiled = 0
    wrong = []
    for path in sorted((suites / "json-schema-test-suite" / "tests" / draft).glob("*.json")):
        for group in json.loads(path.read_text()):
            schema_json = json.dumps(named(group["schema"], draft))
            name = f"{path.name}: {group['description']}"
            try:
                found = compile_source(Source(SourceKind.SCHEMA, schema_json), LIMITS)
            except InvalidRequest as error:
                if "no JSON satisfies" in str(error) and any(case["valid"] for case in group["tests"]):
                    wrong.append(f"{name}: {error}")
                continue
            compiled += 1
            if found.unsupported or found.warnings:
                continue
            enforced += 1
            wrong += [
                f"{name}: {case['description']}"
                for case in group["tests"]
                if not case["valid"] and derives(found.engine_text, json.dumps(case["data"], ensure_ascii=False))
            ]
    with capsys.disabled():
        sys.stdout.write(f"\n{draft}: {compiled} schemas compiled, {enforced} enforced whole, {len(wrong)} wrong\n")
    assert enforced
    assert wrong == []
