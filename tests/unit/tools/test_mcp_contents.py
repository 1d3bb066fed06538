"""What servers send, as text."""

import pytest
from mcp import types

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import ToolFailed
from services.tools.adapters.mcp.contents import contents_of, prompt_of, resource_of, text_of_result, tool_of
from services.tools.adapters.mcp.session import OutputCheck
from services.tools.core.servers import PromptArgument, ToolHints

TEXT = types.TextContent(text="words")


def result(*content, **fields):
    return types.CallToolResult(content=list(content), **fields)


def test_structured_content_is_given_where_no_block_is_text():
    assert text_of_result(result(structured_content={"a": [1, "ü"]})) == '{"a":[1,"ü"]}'
    assert text_of_result(result(TEXT, structured_content={"a": 1})) == "words"
    image = types.ImageContent(data="AAAA", mime_type="image/png")
    assert text_of_result(result(image, structured_content={"a": 1})) == '[image: image/png, 3 bytes]\n\n{"a":1}'


def test_a_result_without_content_is_empty():
    assert text_of_result(result()) == ""


def test_resources_inside_a_result_are_given_or_described():
    text = types.TextResourceContents(uri="a://b", text="inside")
    blob = types.BlobResourceContents(uri="a://c", blob="AAA=", mime_type="x/y")
    blocks = [types.EmbeddedResource(resource=one) for one in (text, blob)]
    assert (
        text_of_result(result(*blocks)) == "[resource: a://b, unknown type]\ninside\n\n[resource: a://c, x/y, 2 bytes]"
    )


def test_contents_are_text_or_bytes():
    text = types.TextResourceContents(uri="a://b", text="inside")
    blob = types.BlobResourceContents(uri="a://c", blob="AAA=")
    assert [part.data for part in contents_of([text, blob])] == ["inside", b"\0\0"]
    with pytest.raises(InvalidRequest, match="not base64"):
        contents_of([types.BlobResourceContents(uri="a://c", blob="!")])


def test_a_tool_without_annotations_has_the_protocols_hints():
    tool = tool_of(types.Tool(name="t", title="Title", input_schema={"type": "object"}))
    assert (tool.description, tool.parameters_json, tool.hints) == ("Title", '{"type":"object"}', ToolHints())


def test_annotations_are_read():
    annotations = types.ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
    tool = tool_of(types.Tool(name="t", input_schema={"type": "object"}, annotations=annotations))
    assert tool.hints == ToolHints(is_read_only=True, is_destructive=False, is_open_world=False)


def test_resources_and_prompts_are_read():
    assert resource_of(types.Resource(uri="a://b", name="b", size=-1)).size_bytes is None
    prompt = types.Prompt(name="p", arguments=[types.PromptArgument(name="a", required=True)])
    assert prompt_of(prompt).arguments == (PromptArgument("a", "", is_required=True),)


def tool_with(schema):
    return types.Tool(name="t", input_schema={"type": "object"}, output_schema=schema)


async def test_structured_content_must_have_the_declared_form_and_is_not_repeated():
    check = OutputCheck()
    check.learn([tool_with({"type": "object", "properties": {"a": {"type": "integer"}}})])
    await check.check("t", result(structured_content={"a": 1}))
    await check.check("other", result(structured_content={"a": "x"}))
    with pytest.raises(ToolFailed, match="does not have the form") as raised:
        await check.check("t", result(structured_content={"a": "s3cret"}))
    assert "s3cret" not in str(raised.value)


async def test_a_schema_that_cannot_be_used_checks_nothing_and_a_pattern_costs_linear_time():
    check = OutputCheck()
    check.learn([tool_with({"type": "object", "$ref": "http://127.0.0.1:1/x"})])
    await check.check("t", result(structured_content={"a": 1}))
    check.learn([tool_with({"type": "object", "properties": {"a": {"pattern": "^(x+x+)+y$"}}})])
    with pytest.raises(ToolFailed):
        await check.check("t", result(structured_content={"a": "x" * 5000}))
