import asyncio
import json

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from services.constraint.adapters.thread_workers import ThreadWorkers
from services.constraint.app.compile_cache import CompileCache
from services.constraint.core.compilation import Source, SourceKind, Unsupported, compile_source
from services.constraint.core.model import Limits
from services.constraint.core.work import Work

LIMITS = Limits(max_schema_bytes=2000, max_schema_depth=20, max_output_bytes=1000)


def schema(value) -> Source:
    return Source(SourceKind.SCHEMA, json.dumps(value))


def test_what_decoding_cannot_enforce_is_listed_by_pointer():
    compiled = compile_source(
        schema(
            {
                "type": "object",
                "properties": {
                    "uniqueItems": {"type": "string", "format": "color"},
                    "a/b": {"type": "array", "uniqueItems": True},
                    "c": {"enum": [{"not": 1}], "oneOf": [{"type": "object"}, {"minProperties": 1}]},
                },
                "required": ["uniqueItems", "a/b", "c"],
            }
        ),
        LIMITS,
    )
    assert set(compiled.unsupported) == {
        Unsupported("format", "/properties/uniqueItems/format"),
        Unsupported("uniqueItems", "/properties/a~1b/uniqueItems"),
        Unsupported("oneOf", "/properties/c/oneOf"),
    }


def test_schema_that_decoding_enforces_has_nothing_unsupported():
    assert compile_source(schema({"type": "string", "maxLength": 65535}), LIMITS).unsupported == ()


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (Source(SourceKind.SCHEMA, "{"), ErrorCode.CONFIG_INVALID),
        (schema({"type": "strin"}), ErrorCode.CONFIG_INVALID),
        (schema({"$ref": "http://example.com/a"}), ErrorCode.CONFIG_INVALID),
        (schema(False), ErrorCode.CONFIG_INVALID),
        (schema({"title": "x" * 2000}), ErrorCode.CONSTRAINT_TOO_COMPLEX),
        (Source(SourceKind.GRAMMAR, "rootRule ::= a"), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (Source(SourceKind.GRAMMAR, "#" * 2001), ErrorCode.CONSTRAINT_TOO_COMPLEX),
        (Source(SourceKind.REGEX, "("), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (Source(SourceKind.REGEX, "(limit"), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (Source(SourceKind.REGEX, "[panic:"), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (Source(SourceKind.REGEX, "a{2,1}exceeds"), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (Source(SourceKind.VALUES, "[]"), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
    ],
)
def test_source_that_cannot_be_compiled_says_whose_fault_it_is(source, code):
    with pytest.raises(InvalidRequest) as caught:
        compile_source(source, LIMITS)
    assert caught.value.code is code


def test_hash_tells_kinds_apart():
    hashes = {Source(kind, "a").hash for kind in SourceKind}
    assert len(hashes) == len(SourceKind)


async def test_cache_keeps_the_last_used_and_remembers_no_failure():
    cache = CompileCache(Work(LIMITS), ThreadWorkers(), entries=2)
    a, b, c = (Source(SourceKind.REGEX, text) for text in "abc")
    assert [(await cache.compile(source))[1] for source in (a, b, a, c, a, b)] == [
        False, False, True, False, True, False,
    ]  # fmt: skip
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            await cache.compile(Source(SourceKind.REGEX, "("))


async def test_a_compilation_that_nobody_waits_for_is_given_up():
    class Stuck:
        cancelled = 0

        async def run(self, *_):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise

    workers = Stuck()
    cache = CompileCache(Work(LIMITS), workers, entries=2)
    callers = [asyncio.create_task(cache.compile(Source(SourceKind.REGEX, "a"))) for _ in range(2)]
    for left, caller in enumerate(callers, start=1):
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await asyncio.sleep(0)
        assert workers.cancelled == (left == len(callers))
