"""Arguments and outputs that mean harm, over all built-in tools: each gets its code. -s prints the table."""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
import sys
from pathlib import Path

import pytest
import pytest_asyncio

from services.tools.adapters.builtin import fetching, sql
from tests.support.certificates import Authority
from tests.support.tool_service import make_database, tool_service
from tests.support.web_pages import web_pages

UNREACHED = "the-secret-beside-the-folders"
OK, FAILED, INVALID = "OK", "TOOL_EXECUTION_FAILED", "TOOL_INVALID_ARGUMENTS"
pytestmark = pytest.mark.asyncio(loop_scope="module")

# {port} is the server's; names end at the address that ADDRESSES gives.
URLS = {
    "an address that is not permitted": ("http://10.0.0.1/", FAILED, "not permitted"),
    "loopback, short": ("http://127.1:{port}/plain", FAILED, "not permitted"),
    "loopback, in hexadecimal": ("http://0x7f000001:{port}/plain", FAILED, "not permitted"),
    "loopback, as one number": ("http://2130706433:{port}/plain", FAILED, "not permitted"),
    "loopback, in octal": ("http://0177.0.0.1:{port}/plain", FAILED, "not valid"),
    "loopback of IPv6": ("http://[::1]:{port}/plain", FAILED, "not permitted"),
    "IPv4 inside IPv6": ("http://[::ffff:127.0.0.1]:{port}/plain", FAILED, "not permitted"),
    "another port": ("http://127.0.0.1:22/", FAILED, "not permitted"),
    "another scheme": ("ftp://127.0.0.1:{port}/plain", FAILED, "must begin with https"),
    "a file": ("file:///etc/passwd", FAILED, "must begin with https"),
    "a user before the host": ("http://127.0.0.1:{port}@10.0.0.1/", FAILED, "user name"),
    "a permitted host as a user": ("http://pages.test:{port}@evil.test/", FAILED, "user name"),
    "a permitted host as a prefix": ("http://pages.test.evil.test:{port}/", FAILED, "not permitted"),
    "a backslash": ("http://pages.test:{port}\\@evil.test/", FAILED, ""),
    "a line break": ("http://pages.test:{port}/a\r\nHost: evil.test", FAILED, "not valid"),
    "a NUL byte": ("http://pages.test:{port}/\0", FAILED, "not valid"),
    "a lone surrogate": ("http://pages.test:{port}/\ud800", FAILED, "not valid"),
    "no host": ("http:///plain", FAILED, "must begin with https"),
    "a broken address": ("http://[::1/", FAILED, "not valid"),
    "3000 characters": ("http://pages.test/" + "a" * 3000, INVALID, ""),
    "a name of a private address": ("http://private.test:{port}/plain", FAILED, "not public"),
    "a name of a public and a private address": ("http://mixed.test:{port}/plain", FAILED, "not public"),
    "a name of a NAT64 address": ("http://nat64.test:{port}/plain", FAILED, "not public"),
    "a name without an address": ("http://nowhere.test:{port}/plain", FAILED, "has no address"),
    "a redirect to the metadata of a cloud": ("http://127.0.0.1:{port}/to-metadata", FAILED, "not permitted"),
    "a redirect to a file": ("http://127.0.0.1:{port}/to-file", FAILED, "must begin with https"),
    "a redirect with a password": ("http://127.0.0.1:{port}/to-password", FAILED, "user name"),
    "a redirect to nothing": ("http://127.0.0.1:{port}/to-nothing", FAILED, "did not answer properly"),
    "a redirect without end": ("http://127.0.0.1:{port}/loop", FAILED, "more than 5 times"),
    "a gzip bomb": ("http://127.0.0.1:{port}/bomb", OK, '"is_truncated":true'),
    "gzip that is none": ("http://127.0.0.1:{port}/no-gzip", FAILED, "broken"),
    "an unknown compression": ("http://127.0.0.1:{port}/brotli", FAILED, "not supported"),
    "a page of a mebibyte": ("http://127.0.0.1:{port}/large", OK, '"is_truncated":true'),
    "a page without end": ("http://127.0.0.1:{port}/slow", "TOOL_TIMEOUT", "did not finish"),
    "a page cut short": ("http://127.0.0.1:{port}/cut", FAILED, "did not answer properly"),
    "headers of a mebibyte": ("http://127.0.0.1:{port}/headers", FAILED, "did not answer properly"),
    "a server of another protocol": ("http://127.0.0.1:{port}/no-http", FAILED, "did not answer properly"),
    "a server that hangs up": ("http://127.0.0.1:{port}/silent", FAILED, "did not answer properly"),
    "a picture": ("http://127.0.0.1:{port}/image", FAILED, "not text"),
    "a page without a type": ("http://127.0.0.1:{port}/untyped", FAILED, "not text"),
    "a codec that is no encoding": ("http://127.0.0.1:{port}/odd-charset", OK, '"text":"text"'),
    "bytes that are no UTF-8": ("http://127.0.0.1:{port}/no-utf-8", OK, "a\ufffd\ufffdb"),
}
NAMES = ("127.0.0.1", "pages.test", "private.test", "mixed.test", "nat64.test", "nowhere.test")
ADDRESSES = {"private.test": ["10.0.0.1"], "mixed.test": ["1.1.1.1", "192.168.0.1"], "nat64.test": ["64:ff9b::a00:1"]}

PATHS = {
    "up and out": ("docs/../secret.txt", FAILED, "'..'"),
    "an absolute path": ("/etc/passwd", FAILED, "begin with '/'"),
    "a folder that there is not": ("etc/passwd", FAILED, "no folder is named"),
    "a NUL byte": ("docs/a.txt\0.png", FAILED, "control characters"),
    "backslashes": ("docs\\..\\secret.txt", FAILED, "backslashes"),
    "a lone surrogate": ("docs/\ud800", FAILED, "not valid"),
    "a link to a file outside": ("docs/link.txt", FAILED, "symbolic link"),
    "a link to a folder outside": ("docs/outside/secret.txt", FAILED, "link"),
    "a FIFO": ("docs/fifo", FAILED, "not a regular file"),
    "a folder": ("docs/deep", FAILED, "not a regular file"),
    "the folder itself": ("docs", FAILED, "is a folder"),
    "a name of 300 bytes": ("docs/" + "a" * 300, FAILED, "at most 255"),
    "a path of 40 levels": ("docs/" + "a/" * 40, FAILED, "at most 32"),
    "bytes that are no UTF-8": ("docs/binary", FAILED, "not UTF-8"),
    "a file of five mebibytes": ("docs/large", FAILED, "at most 4194304 bytes"),
    "a file larger than a result": ("docs/long", FAILED, "at most 65536 bytes"),
}
WRITES = {
    "to a folder that is only read": ("docs/new.txt", FAILED, "cannot be written"),
    "through a link": ("out/outside/new.txt", FAILED, "link"),
    "over a link": ("out/link.txt", FAILED, "not a regular file"),
    "over a folder": ("out/deep", FAILED, "not a regular file"),
    "up and out": ("out/../secret.txt", FAILED, "'..'"),
}
QUERIES = {
    "DROP": ("DROP TABLE city", FAILED, "only one SELECT"),
    "INSERT": ("INSERT INTO city VALUES ('x', 1, NULL)", FAILED, "only one SELECT"),
    "a WITH that deletes": ("WITH a AS (SELECT 1) DELETE FROM city", FAILED, "only one SELECT"),
    "ATTACH": ("ATTACH '{secret}' AS s", FAILED, "only one SELECT"),
    "VACUUM INTO": ("VACUUM INTO '{secret}.copy'", FAILED, "only one SELECT"),
    "PRAGMA": ("PRAGMA journal_mode = DELETE", FAILED, "only one SELECT"),
    "PRAGMA as a table": ("SELECT * FROM pragma_database_list", FAILED, ""),
    "two statements": ("SELECT 1; DROP TABLE city", FAILED, "one statement"),
    "an extension": ("SELECT load_extension('/tmp/x.so')", FAILED, ""),
    "a file": ("SELECT readfile('/etc/passwd')", FAILED, "no such function"),
    "a recursion without end": (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        FAILED,
        "did not end",
    ),
    "a product of tables": (
        "SELECT count(*) FROM city" + ", city" * 29,
        FAILED,
        "did not end",
    ),
    "rows without end": (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
        OK,
        '"is_truncated":true',
    ),
    "a value of a gigabyte": ("SELECT zeroblob(1000000000)", FAILED, "too big"),
    "a row of a megabyte": ("SELECT hex(zeroblob(400000))", FAILED, "one row has more than"),
    "a row of 150 megabytes": ("SELECT " + ",".join(["hex(zeroblob(499000))"] * 150), FAILED, "ask for less"),
    "a sort of gigabytes": (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT hex(randomblob(400000)) FROM n ORDER BY 1",
        FAILED,
        "ask for less",
    ),
    "a recursion that keeps gigabytes": (
        "WITH RECURSIVE n(i) AS (SELECT '' UNION SELECT hex(randomblob(400000)) FROM n) SELECT count(*) FROM n",
        FAILED,
        "ask for less",
    ),
    "an expression 1000 deep": ("SELECT " + "(" * 1000 + "1" + ")" * 1000, FAILED, ""),
    "an infinite number": ("SELECT 9e999", OK, '["inf"]'),
    "a NUL byte": ("SELECT 1\0; DROP TABLE city", FAILED, ""),
    "a database that there is not": ("SELECT 1", INVALID, ""),
}


POO = "\N{PILE OF POO}"


def joined(text, count):
    return json.dumps({"s": text, "l": [""] * count}, separators=(",", ":"), ensure_ascii=False)


DOCUMENTS = {
    "a join of a gigabyte": (joined(POO * 8000, 8000), "join(s, l)", FAILED, "too much of the document"),
    "a join for each element": (joined("x" * 1000, 8000), "map(&join(`aaaa`, [@,@]), l)", OK, "aaaa"),
    "joins of joins": (joined("x" * 99, 99), "join(join(join(s, l), l), l)", FAILED, "too much of the document"),
    "a join of what is no text": (joined("x", 9), "join(s, `[0]`)", FAILED, "invalid type"),
    "a list that doubles": ("[1]", " | ".join(["[@,@][]"] * 40), FAILED, "too much of the document"),
    "a value that doubles, as text": ("[1]", " | ".join(["[@,@]"] * 60) + " | to_string(@)", FAILED, "too much"),
    "a document of 65538 bytes": (json.dumps("ä" * 32_768, ensure_ascii=False), "@", FAILED, "at most 65536"),
    "a document 30000 deep": ("[" * 30_000 + "]" * 30_000, "@", FAILED, "nested too deeply"),
    "a number of 5000 digits": (json.dumps("1" * 5000), "to_number(@)", FAILED, "does not fit"),
    "half a character": ('["\\ud800"]', "@", OK, '["?"]'),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("base")
    (base / "secret.txt").write_text(UNREACHED)
    for name in ("docs", "out"):
        (base / name / "deep").mkdir(parents=True)
        (base / name / "link.txt").symlink_to(base / "secret.txt")
        (base / name / "outside").symlink_to(base)
    os.mkfifo(base / "docs" / "fifo")
    (base / "docs" / "binary").write_bytes(b"\xff\xfe")
    (base / "docs" / "large").write_bytes(b"x" * 5 * 2**20)
    (base / "docs" / "long").write_bytes(b"x" * 100_000)
    make_database(base / "city.db")
    return base


async def resolve(name, _port):
    if name not in ADDRESSES:
        raise OSError
    return [ipaddress.ip_address(address) for address in ADDRESSES[name]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(folders):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching, "_resolve_by_system", resolve)
        patch.setattr(fetching, "TIMEOUT_S", 1.0)
        patch.setattr(sql, "MAX_QUERY_S", 0.5)
        async with web_pages() as (pages, port):
            settings = {
                "fetch_hosts": ",".join(f"http://{name}:{port}" for name in NAMES),
                "file_roots": f"docs={folders / 'docs'}",
                "writable_roots": f"out={folders / 'out'}",
                "sql_databases": f"city={folders / 'city.db'}",
                "max_retries": 0,
            }
            async with tool_service(**settings) as tools:
                yield tools, pages, port


@pytest.fixture(scope="module")
def table():
    rows = []
    yield rows
    sys.stdout.write("\n".join(["", *rows, ""]))


async def judge(tools, table, what, answer, expected):
    table.append(f"{what:60} {answer.code:22} {' '.join(answer.text.split())[:90]}")
    code, words = expected
    assert answer.code == code, answer
    assert words in answer.text
    assert UNREACHED not in answer.text
    assert len(answer.text) <= 65_536
    await tools.assert_healthy()


@pytest.mark.parametrize("name", URLS)
async def test_urls_and_pages(name, world, table):
    tools, _, port = world
    url, *expected = URLS[name]
    answer = await tools.call("http_fetch", url=url.replace("{port}", str(port)))
    await judge(tools, table, f"http_fetch: {name}", answer, expected)


@pytest.mark.parametrize("name", PATHS)
async def test_paths_to_read(name, world, table):
    path, *expected = PATHS[name]
    await judge(world[0], table, f"read_file: {name}", await world[0].call("read_file", path=path), expected)


@pytest.mark.parametrize("name", WRITES)
async def test_paths_to_write(name, world, table, folders):
    path, *expected = WRITES[name]
    answer = await world[0].call("write_file", path=path, content="changed", overwrite=True)
    await judge(world[0], table, f"write_file: {name}", answer, expected)
    assert (folders / "secret.txt").read_text() == UNREACHED
    assert sorted(path.name for path in folders.iterdir()) == ["city.db", "docs", "out", "secret.txt"]
    assert not list(folders.rglob("*.part"))


@pytest.mark.parametrize("name", QUERIES)
async def test_queries(name, world, table, folders):
    query, *expected = QUERIES[name]
    before = (folders / "city.db").read_bytes()
    database = "other" if name == "a database that there is not" else "city"
    query = query.replace("{secret}", str(folders / "secret.txt"))
    answer = await world[0].call("sql_query", database=database, query=query)
    await judge(world[0], table, f"sql_query: {name}", answer, expected)
    assert (folders / "city.db").read_bytes() == before


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_documents(name, world, table):
    document, query, *expected = DOCUMENTS[name]
    answer = await world[0].call("json_query", document=document, query=query)
    await judge(world[0], table, f"json_query: {name}", answer, expected)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is reset by a file of Linux")
async def test_hostile_arguments_take_none_of_the_services_memory(world):
    before = forget_peak()
    for document, query, *_ in DOCUMENTS.values():
        await world[0].call("json_query", document=document, query=query)
    for query, *_ in QUERIES.values():
        await world[0].call("sql_query", database="city", query=query)
    assert peak_mib() - before < 64


def forget_peak():
    """Begin the peak of this process's memory at the present, and return it in MiB."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except PermissionError:
        pytest.skip("the memory of this process is protected")
    return peak_mib()


def peak_mib():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


async def test_the_connection_goes_to_the_address_that_was_checked(world, monkeypatch):
    """A resolver that changes its answer is asked once for each request."""
    tools, pages, port = world
    answers = [["127.0.0.1"], ["10.0.0.1"]]
    asked = []

    async def rebinding(name, _port):
        asked.append(name)
        return [ipaddress.ip_address(address) for address in answers.pop(0)]

    monkeypatch.setattr(fetching, "_resolve_by_system", rebinding)
    async with tool_service(fetch_hosts=f"http://pages.test:{port},http://127.0.0.1:{port}", max_retries=0) as own:
        pages.asked.clear()
        first = await own.call("http_fetch", url=f"http://pages.test:{port}/plain?q=1")
        assert json.loads(first.text) == {
            "status": 200,
            "url": f"http://pages.test:{port}/plain?q=1",
            "content_type": "text/plain",
            "text": "grün",
            "is_truncated": False,
        }
        assert asked == ["pages.test"]
        assert pages.asked == ["GET /plain?q=1 HTTP/1.1", f"host: pages.test:{port}"]
        second = await own.call("http_fetch", url=f"http://pages.test:{port}/plain")
        assert "not public" in second.text
    await tools.assert_healthy()


async def test_a_file_that_becomes_a_link_meanwhile_is_never_read(world, folders):
    """Swap a file and a link while it is read again and again."""
    path = folders / "docs" / "swapped.txt"
    for number in range(60):
        path.unlink(missing_ok=True)
        if number % 2:
            path.symlink_to(folders / "secret.txt")
        else:
            path.write_text("harmless")
        answer = await world[0].call("read_file", path="docs/swapped.txt")
        assert answer.text == "harmless" or "symbolic link" in answer.text


async def test_a_host_is_verified_by_its_name_over_tls(tmp_path, monkeypatch):
    authority = Authority()
    for name, pem in zip(("cert", "key"), authority.issue(), strict=True):
        (tmp_path / name).write_bytes(pem)
    (tmp_path / "authority").write_bytes(authority.pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")

    async def to_loopback(_name, _port):
        return [ipaddress.ip_address("127.0.0.1")]

    monkeypatch.setattr(fetching, "_resolve_by_system", to_loopback)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority"))
    async with web_pages(ssl=context) as (pages, port):
        hosts = ",".join(f"{name}:{port}" for name in ("localhost", "other.test", "127.0.0.1"))
        async with tool_service(fetch_hosts=hosts, max_retries=0) as tools:
            answer = await tools.call("http_fetch", url=f"https://localhost:{port}/plain")
            assert json.loads(answer.text)["text"] == "grün"
            assert pages.asked[1] == f"host: localhost:{port}"
            refused = await tools.call("http_fetch", url=f"https://other.test:{port}/plain")
            assert "certificate verify failed" in refused.text


async def test_pages_are_decoded_as_they_say(world):
    tools, _, port = world
    for name, text in (("latin", "grün"), ("gzip", "packed"), ("to-plain", "grün"), ("missing", "no such page")):
        answer = await tools.call("http_fetch", url=f"http://127.0.0.1:{port}/{name}")
        assert json.loads(answer.text)["text"] == text
