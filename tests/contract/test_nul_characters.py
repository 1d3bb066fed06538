"""NUL characters (U+0000) in documents, which PostgreSQL cannot store: both databases treat them alike."""

from __future__ import annotations

from contextlib import closing

import pytest

from pagantic_common.domain.errors import InvalidRequest
from services.context.core.document import Document
from tests.support.context_app import Context, key


@pytest.fixture
async def context(database_url):
    with closing(Context(database_url)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (Document("bad", "apple\0pie"), r"documents\[1\]\.content has a NUL \(U\+0000\) at character 5, .*: remove it"),
        (Document("b\0d", "apple"), r"documents\[1\]\.source must be 1 to 512 printable characters: rename it"),
        (Document("bad", "apple", '{"year": "\0"}'), r"documents\[1\]\.metadata_json is not JSON: .*control character"),
    ],
)
async def test_a_nul_is_refused_with_the_name_of_its_field_and_nothing_is_stored(context, document, message):
    with pytest.raises(InvalidRequest, match=message):
        await context.ingest(Document("good", "banana"), document)
    assert await context.library.list_collections("acme") == []


async def test_metadata_may_have_a_nul_that_is_escaped(context):
    await context.ingest(Document("a", "apple", r'{"mark": "\u0000"}'))
    (found,) = await context.find("apple", filter=r'metadata.mark == "\u0000"')
    assert found.metadata_json == r'{"mark": "\u0000"}'


async def test_a_source_with_a_nul_is_unknown(context):
    await context.ingest(Document("a", "apple"), Document("b", "banana"))
    assert await context.library.delete_documents(key("docs"), ["a\0", "b"]) == 1
    assert await context.sources("apple banana") == ["a"]
