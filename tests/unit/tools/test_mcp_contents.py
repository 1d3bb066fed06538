"""What servers send, as text."""

import base64
import json

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


DATA = base64.b64encode(bytes(range(256)) * 12).decode()
IMAGE = types.ImageContent(data=DATA, mime_type="image/png")
AUDIO = types.AudioContent(data=DATA, mime_type="audio/wav")
BLOB = types.EmbeddedResource(resource=types.BlobResourceContents(uri="a://b", blob=DATA, mime_type="image/png"))
DESCRIPTIONS = {
    "image": "[image: image/png, 3072 bytes]",
    "audio": "[audio: audio/wav, 3072 bytes]",
    "resource": "[resource: a://b, image/png, 3072 bytes]",
}


def written(block):
    return block.model_dump(mode="json", by_alias=True, exclude_none=True)


@pytest.mark.parametrize("block", [IMAGE, AUDIO, BLOB], ids=lambda block: block.type)
@pytest.mark.parametrize(
    "structure",
    [
        lambda block: {"content": [block]},
        lambda block: {"result": block},
        lambda block: {"pages": [[{"picture": block}], [{"picture": block}]]},
        lambda block: {"data": block.get("data") or block["resource"]["blob"]},
        lambda _: {"url": f"data:image/png;base64,{DATA}"},
        lambda _: {"url": f"data:image/svg+xml;charset=utf-8;base64,{DATA}"},
    ],
)
def test_data_that_a_server_sends_twice_is_described_once(block, structure):
    assert text_of_result(result(block, structured_content=structure(written(block)))) == DESCRIPTIONS[block.type]


@pytest.mark.parametrize("block", [IMAGE, AUDIO, BLOB], ids=lambda block: block.type)
def test_structured_content_beside_data_stays_and_the_data_in_it_is_described(block):
    shown = text_of_result(result(block, structured_content={"width": 8, "content": [written(block)]}))
    description = DESCRIPTIONS[block.type]
    assert shown == f'{description}\n\n{{"width":8,"content":["{description}"]}}'


@pytest.mark.parametrize("block", [IMAGE, AUDIO, BLOB], ids=lambda block: block.type)
@pytest.mark.parametrize("form", [lambda block: {"content": [block]}, lambda block: {"result": block}])
def test_blocks_in_structured_content_alone_are_described(block, form):
    shown = text_of_result(result(structured_content=form(written(block))))
    assert DESCRIPTIONS[block.type] in shown
    assert len(shown) < 100


def test_data_urls_in_structured_content_alone_are_described():
    shown = text_of_result(result(structured_content={"url": f"data:image/gif;base64,{DATA}"}))
    assert shown == '{"url":"[data: image/gif, 3072 bytes]"}'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (json.dumps({"content": [written(IMAGE)]}), DESCRIPTIONS["image"]),
        (f"![plot](data:image/png;base64,{DATA})", f"![plot]({DESCRIPTIONS['image']})"),
        (f"saved:\n{DATA}\nand shown", f"saved:\n{DESCRIPTIONS['image']}\nand shown"),
    ],
)
def test_data_that_a_text_beside_it_repeats_is_described(text, shown):
    words = text_of_result(result(IMAGE, types.TextContent(text=text)))
    assert DATA not in words
    assert shown in words.partition("\n\n")[2]


@pytest.mark.parametrize("text", [DATA, f"data:image/png;base64,{DATA}", "AAAA" * 1000, "AAAA"])
def test_a_text_that_repeats_no_data_is_given_as_it_is(text):
    other = types.ImageContent(data="AAAA", mime_type="image/png")
    assert text_of_result(result(types.TextContent(text=text))) == text
    assert text_of_result(result(other, types.TextContent(text=text))).endswith(text)
    assert json.loads(text_of_result(result(structured_content={"token": "AAAA" * 1000}))) == {"token": "AAAA" * 1000}


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
