"""The files of the console over HTTP, and the list of executions that it shows."""

import re
from importlib import resources

import pytest

from tests.integration.http.test_native import body

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "object-src": "'none'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
}


IMPORT = re.compile(r"""(?:from|import) "\./([\w.]+)";""")
LATER = re.compile(r'''(?:import|showFrom)\("\./([\w.]+)"''')


async def page_and_files(server):
    """Return the page, and every file that it or another file names, by its path."""
    page = await server.http.get("/")
    waiting = re.findall(r'"(/console/[^"]+)"', page.text)
    files = {}
    while waiting:
        path = waiting.pop()
        if path not in files:
            files[path] = await server.http.get(path)
            folder = path.rpartition("/")[0]
            text = files[path].text
            waiting += [f"{folder}/{name}" for name in (*IMPORT.findall(text), *LATER.findall(text))]
    return page, files


def names_in(page):
    """Return the files that the page itself names."""
    return {path.rpartition("/")[2] for path in re.findall(r'"(/console/[^"]+)"', page.text)}


async def test_the_page_and_each_file_that_it_names_are_served_with_strict_headers(served):
    async with served() as server:
        page, files = await page_and_files(server)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert {path.rpartition(".")[2] for path in files} == {"css", "js", "svg"}
    for answer in (page, *files.values()):
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert answer.status_code == 200
        assert POLICY.items() <= policy.items()
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


async def test_the_page_names_exactly_the_modules_that_its_first_section_needs_so_that_all_load_at_once(served):
    async with served() as server:
        page, files = await page_and_files(server)
    imports = {path.rpartition("/")[2]: set(IMPORT.findall(answer.text)) for path, answer in files.items()}
    needed, waiting = {"app.js"}, ["app.js"]
    while waiting:
        found = imports[waiting.pop()] - needed
        needed |= found
        waiting += found
    assert len(needed) > 5
    assert {name for name in names_in(page) if name.endswith(".js")} == needed | {"theme.js"}


async def test_every_file_of_the_console_is_named_by_the_page_or_by_another_file(served):
    async with served() as server:
        _, files = await page_and_files(server)
    there = {file.name for file in (resources.files("gateway.http.native.console") / "static").iterdir()}
    assert {path.rpartition("/")[2] for path in files} == there - {"index.html"}
    assert {answer.status_code for answer in files.values()} == {200}


async def test_no_file_names_another_host_or_makes_markup_of_text(served):
    async with served() as server:
        page, files = await page_and_files(server)
    text = "".join(answer.text for answer in (page, *files.values()))
    hosts = set(re.findall(r"https?://[^\s\"'`)]+", text))
    assert hosts == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|new Function", text)
    assert not re.search(r"<script>|<style|\son\w+=|style=", page.text)


async def test_what_the_browser_has_is_not_sent_again(served):
    async with served() as server:
        page, files = await page_and_files(server)
        for answer in (page, *files.values()):
            known = {"if-none-match": f'"x", W/{answer.headers["etag"]}'}
            again = await server.http.get(answer.request.url.path, headers=known)
            other = await server.http.get(answer.request.url.path, headers={"if-none-match": '"x"'})
            assert (again.status_code, again.content, other.status_code) == (304, b"", 200)
            assert again.headers["etag"] == answer.headers["etag"]
    assert page.headers["cache-control"] == "no-cache"
    assert all("max-age=86400" in answer.headers["cache-control"] for answer in files.values())


async def test_the_console_asks_for_no_key_and_a_known_host(served):
    async with served(auth="keys") as server:
        page = await server.http.get("/")
        elsewhere = await server.http.get("/", headers={"host": "evil.example"})
        called = await server.http.get("/v1/executions")
    assert (page.status_code, elsewhere.status_code, called.status_code) == (200, 421, 401)


async def test_a_setting_turns_the_console_off(served):
    async with served(console=False) as server:
        assert (await server.http.get("/")).status_code == 404
        assert (await server.http.get("/v1/executions")).status_code == 200


async def test_executions_are_listed_newest_first_by_page_session_state_and_mode(served):
    async with served() as server:
        for number in range(3):
            await server.http.post("/v1/executions", json=body(f"r{number}", session_id=f"s{number % 2}"))
        await server.http.post("/v1/executions", json=body("bad", mode="MODE_STRUCTURED"))

        async def listed(**query):
            page = (await server.http.get("/v1/executions", params=query)).json()
            return [one["request_id"] for one in page["executions"]], page["next_page_token"]

        newest, token = await listed(page_size=3)
        assert (newest, await listed(page_token=token)) == (["bad", "r2", "r1"], (["r0"], ""))
        assert await listed(session_id="s0") == (["r2", "r0"], "")
        assert await listed(state="LIFECYCLE_STATE_ERROR") == (["bad"], "")
        assert await listed(mode="MODE_CHAT", page_size=1, page_token=token) == (["r0"], "")
        assert await listed(mode="MODE_PLAN", other="ignored") == ([], "")


@pytest.mark.parametrize(
    "query",
    [{"page_size": 501}, {"page_size": "x"}, {"page_token": "x"}, {"state": "GONE"}, {"mode": 99}, {"session_id": "?"}],
)
async def test_a_list_that_there_is_not_is_refused(served, query):
    async with served() as server:
        refused = await server.http.get("/v1/executions", params=query)
    assert (refused.status_code, refused.json()["error"]["message"] != "") == (400, True)
