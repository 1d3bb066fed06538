"""The native API, the models, and the probes over HTTP."""

import asyncio
import json

import pytest

from gateway.http.native import executions
from services.orchestrator.app.history import History
from tests.support.http_app import serving_http
from tests.support.mcp_app import Deployment
from tests.support.orchestrator_app import stored
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

EVENTS = {"accept": "text/event-stream"}


def body(request_id="r1", **fields):
    return {
        "request_id": request_id,
        "mode": "MODE_CHAT",
        "messages": [{"role": "ROLE_USER", "content": "hi"}],
        **fields,
    }


async def test_a_request_is_answered_as_json_and_kept(served):
    async with served() as server:
        answered = await server.http.post("/v1/executions", json=body())
        kept = (await server.http.get("/v1/executions/r1")).json()
        events = (await server.http.get("/v1/executions/r1/timeline")).json()["events"]
        ended = (await server.http.delete("/v1/executions/r1")).json()
    assert (answered.status_code, answered.headers["x-request-id"]) == (200, "r1")
    assert (answered.json()["content"], answered.json()["finish_reason"]) == ("hello", "FINISH_REASON_STOP")
    assert kept["response"]["content"] == "hello"
    assert [int(event["sequence"]) for event in events] == list(range(1, len(events) + 1))
    assert ended == {"state": "LIFECYCLE_STATE_COMPLETE"}


async def test_a_kept_request_has_steps_and_is_replayed(served):
    async with served() as server:
        await server.http.post("/v1/executions", json=body(keep_request=True))
        steps = (await server.http.get("/v1/executions/r1/steps")).json()["steps"]
        again = await server.http.post("/v1/executions", json=body("r2", replay={"request_id": "r1"}))
        unkept = await server.http.get("/v1/executions/r2/steps")
    assert [(step["name"], step.get("content", "")) for step in steps] == [("prepare", ""), ("infer-1", "hello")]
    assert again.json()["content"] == "hello"
    assert (unkept.status_code, "keep_request" in unkept.text) == (409, True)


async def read_pages(server, path, items, query, following):
    """Return the content of all pages of a list, and the number of pages."""
    read, count, params = [], 0, {}
    while params is not None:
        page = (await server.http.get(path, params=params)).json()
        read, count = read + page[items], count + 1
        params = {query: page[following]} if following in page else None
    return read, count


async def test_many_events_and_steps_come_in_pages(served, monkeypatch):
    monkeypatch.setattr(History.__init__, "__defaults__", (500,))  # The orchestrator's pages have 500 bytes.
    timeline = "/v1/executions/r1/timeline", "events", "after_sequence", "next_after_sequence"
    steps = "/v1/executions/r1/steps", "steps", "page_token", "next_page_token"
    async with served(scripted_services(inference=ScriptedInference(answer("x" * 2000)))) as server:
        await server.http.post("/v1/executions", json=body(keep_request=True))
        whole = [await read_pages(server, *arguments) for arguments in (timeline, steps)]
        monkeypatch.setattr(executions, "MAX_PAGE_BYTES", 1)
        split = [await read_pages(server, *arguments) for arguments in (timeline, steps)]
        wrong = await server.http.get(timeline[0], params={"after_sequence": "x"})
    assert [count for _, count in whole] == [1, 1]
    assert all(count > 1 for _, count in split)
    assert [read for read, _ in split] == [read for read, _ in whole]
    assert wrong.status_code == 400


async def test_a_request_without_an_id_gets_one(served):
    async with served() as server:
        answered = await server.http.post("/v1/executions", json=body(""))
    assert answered.headers["x-request-id"] == answered.json()["request_id"] != ""


async def test_a_request_is_answered_as_events_when_they_are_asked_for(served):
    async with served() as server:
        answered = await server.http.post("/v1/executions", json=body(), headers=EVENTS)
    *events, end = answered.text.split("\n\n")
    read = [dict(line.split(": ", 1) for line in event.splitlines()) for event in events]
    assert (answered.headers["content-type"], end) == ("text/event-stream; charset=utf-8", "")
    assert {"transition", "inference_start", "content_delta"} <= {event["event"] for event in read}
    last = json.loads(read[-1]["data"])
    assert (read[-1]["event"], read[-1]["id"]) == ("completed", last["sequence"])
    assert last["completed"]["response"]["content"] == "hello"


async def test_a_stream_is_taken_up_after_the_last_event_that_came(served):
    async with served() as server:
        whole = (await server.http.post("/v1/executions", json=body(), headers=EVENTS)).text.split("\n\n")
        ids = [event.splitlines()[0].removeprefix("id: ") for event in whole[:-1]]
        third = await server.http.get("/v1/executions/r1", headers=EVENTS | {"last-event-id": ids[2]})
        ended = await server.http.get("/v1/executions/r1", headers=EVENTS | {"last-event-id": ids[-1]})
        refused = await server.http.get("/v1/executions/r1", headers=EVENTS | {"last-event-id": "x"})
        unknown = await server.http.get("/v1/executions/r2", headers=EVENTS)
    kept = [event for event in whole if "_delta" not in event]
    assert third.text.split("\n\n") == kept[kept.index(whole[2]) + 1 :]
    assert (ended.status_code, ended.text) == (200, "")
    assert (refused.status_code, unknown.status_code) == (400, 404)


@pytest.mark.parametrize("headers", [{}, EVENTS])
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"colour": "green"}, "colour"),
        ({"messages": 5}, "messages"),
        ({"hints": {"temperature": 3}}, "temperature"),
        ({"request_id": "ü"}, "request_id"),
    ],
)
async def test_what_is_no_request_is_refused(served, headers, fields, words):
    async with served() as server:
        refused = await server.http.post("/v1/executions", json=body() | fields, headers=headers)
    assert (refused.status_code, words in refused.json()["error"]["message"]) == (400, True)


async def test_an_execution_that_is_deleted_is_cancelled(served):
    services = scripted_services(ScriptedInference(None))
    async with served(services) as server:
        asking = asyncio.create_task(server.http.post("/v1/executions", json=body()))
        await asyncio.wait_for(services.inference.waiting.wait(), 60)
        ended = await server.http.delete("/v1/executions/r1")
        answered = await asking
    assert ended.json() == {"state": "LIFECYCLE_STATE_CANCELLED"}
    assert answered.json()["error"]["code"] == "ERROR_CODE_CANCELLED_SIGNAL"


async def test_a_client_that_leaves_the_events_stops_the_execution(served):
    services = scripted_services(ScriptedInference(None))
    async with served(services) as server:
        async with server.http.stream("POST", "/v1/executions", json=body(), headers=EVENTS) as response:
            assert response.status_code == 200
            await asyncio.wait_for(services.inference.waiting.wait(), 60)
        await asyncio.wait_for(services.inference.stopped.wait(), 60)
        await stored(server.world.stub, "r1", lambda events: events[-1].WhichOneof("event") == "completed")


async def test_models_are_those_that_are_served_and_the_names_that_stand_for_them(served):
    async with served(models={"gpt": "", "*": ""}) as server:
        listed = (await server.http.get("/v1/models")).json()
        one = (await server.http.get("/v1/models/scripted")).json()
        named = await server.http.get("/v1/models/gpt")
    assert [model["id"] for model in listed["data"]] == ["scripted", "embedder", "pairs", "gpt"]
    assert (listed["object"], listed["data"][0]) == ("list", one)
    assert one["pagantic"] == {"context_window": 8192, "capabilities": ["chat", "tools"]}
    assert (named.status_code, named.json()["id"]) == (200, "gpt")


async def test_a_model_that_there_is_not_is_not_found(served):
    async with served() as server:
        refused = await server.http.get("/v1/models/org/unknown")
    assert (refused.status_code, "org/unknown" in refused.json()["error"]["message"]) == (404, True)


async def test_probes_are_answered_without_a_key_and_by_any_name(served):
    async with served(auth="keys") as server:
        for path in ("/healthz", "/readyz"):
            assert (await server.http.get(path, headers={"host": "10.0.0.1"})).status_code == 200


async def test_a_gateway_without_its_orchestrator_lives_and_is_not_ready():
    nobody = Deployment(None, "127.0.0.1:1", None, None)
    async with serving_http(nobody) as server:
        assert (await server.http.get("/healthz")).status_code == 200
        assert (await server.http.get("/readyz")).status_code == 503
        failed = await server.chat()
    assert (failed.status_code, failed.headers["x-should-retry"], failed.headers["retry-after"]) == (503, "true", "1")
