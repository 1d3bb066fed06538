"""Generated requests: whatever a client sends, the answer is as the document says, and no failure of the server."""

import asyncio
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.http_requests import BODIES, changed
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

EXAMPLES = int(os.environ.get("PAGANTIC_HTTP_EXAMPLES", "10"))
# Nothing waits for the decision.
STATUSES = {"/v1/approvals/r/c1/decision": 404}
# A deployment may be unable to do what is asked, and a request may ask for so little time that it passes.
ALLOWED_FAILURES = (501, 504)


@pytest.fixture
def services():
    inference = ScriptedInference()
    inference.outputs = [answer("hello")]
    return scripted_services(inference)


@pytest.mark.parametrize("path", BODIES)
async def test_whatever_is_sent_the_answer_is_as_the_document_says(served, services, path):
    async with served(services, call_s=10, models={"*": ""}, moderation_model="") as server:
        place = path.format(
            conversation=(await server.http.post("/v1/conversations", json={})).json()["id"],
            chat=(await server.chat(store=True)).json()["id"],
        )
        loop = asyncio.get_running_loop()

        async def send(body):
            response = await server.http.post(place, content=json.dumps(body))
            await response.aread()
            return response

        given_as_it_is = await send(BODIES[path])
        assert given_as_it_is.status_code == STATUSES.get(path, 200), given_as_it_is.text

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(changed(BODIES[path]))
        def holds(body):
            response = asyncio.run_coroutine_threadsafe(send(body), loop).result(30)
            assert response.status_code < 500 or response.status_code in ALLOWED_FAILURES, response.text

        await asyncio.to_thread(holds)
