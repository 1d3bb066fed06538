"""Images over HTTP: each API's own form of them becomes the same message."""

import base64

from pagantic_common.domain.images import file_of, image_of
from tests.support.http_app import chat_body
from tests.support.sample_images import sample_image
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

ICON = sample_image()
DATA = base64.b64encode(ICON).decode()
URL = image_of("image/png", ICON).url


async def test_every_api_takes_images_in_its_own_form(served):
    inference = ScriptedInference(*[answer("an icon")] * 5)
    part = {"type": "image_url", "image_url": {"url": URL}}
    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "What?"}]
    bodies = {
        "/v1/chat/completions": chat_body(
            messages=[{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}]
        ),
        "/v1/responses": {
            "model": "",
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": "What?"}],
                }
            ],
        },
        "/v1/messages": {"model": "default", "max_tokens": 9, "messages": [{"role": "user", "content": blocks}]},
        "/api/chat": {
            "model": "default",
            "stream": False,
            "messages": [{"role": "user", "content": "What?", "images": [DATA]}],
        },
        "/v1/executions": {
            "mode": "MODE_CHAT",
            "messages": [
                {"role": "ROLE_USER", "parts": [{"image": {"mediaType": "image/png", "data": DATA}}, {"text": "What?"}]}
            ],
        },
    }
    async with served(scripted_services(inference)) as server:
        for path, body in bodies.items():
            response = await server.http.post(path, json=body)
            assert (response.status_code, path) == (200, path), response.text
    assert len(inference.commands) == len(bodies)
    for command in inference.commands:
        message = command.messages[-1]
        (image,) = message.images
        assert (message.content, image.media_type, image.offset, file_of(image)) == ("What?", "image/png", 0, ICON)


async def test_the_address_of_an_image_is_not_fetched(served):
    part = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/cat.png"}}
    async with served() as server:
        response = await server.chat(messages=[{"role": "user", "content": [part]}])
    assert response.status_code == 400
    assert "addresses are not fetched" in response.json()["error"]["message"]


async def test_a_stored_response_and_its_input_have_the_image(served):
    async with served(scripted_services(ScriptedInference(answer("an icon"), answer("red")))) as server:
        content = [{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": "What?"}]
        body = {"model": "", "input": [{"role": "user", "content": content}]}
        first = (await server.http.post("/v1/responses", json=body)).json()
        items = (await server.http.get(f"/v1/responses/{first['id']}/input_items")).json()["data"]
    (told,) = [part for item in items for part in item["content"] if part["type"] == "input_image"]
    assert told["image_url"] == URL
