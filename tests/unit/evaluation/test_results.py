"""Results files: what a kill leaves, two commands at once, and lines that are none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evaluation.running.results import Header, Result, ResultsError, ResultsFile, StoredScore, read_results

HEADER = Header(
    id="e1",
    name="n",
    started_at="2026-01-01T00:00:00+00:00",
    suite={"cases": [{"name": "a"}, {"name": "b"}]},
    suite_hash="h",
    settings={},
    units={"exact": ""},
    versions={"pagantic": "0"},
)


def result(case, value=1.0, output=""):
    return Result(
        case=case, key="k", request_id=f"eval.e1.{case}", scores={"exact": StoredScore(value=value)}, output=output
    )


@pytest.fixture
def path(tmp_path):
    written = tmp_path / "evaluations" / "n.jsonl"
    with ResultsFile(written) as file:
        file.begin(HEADER)
        file.append(result("a"))
        file.append(result("b", output="\ud800 \x00 \u2028 é"))
    return written


def test_results_are_read_as_they_were_written(path):
    read = read_results(path)
    assert read.header == HEADER
    assert read.by_case == {"a": result("a"), "b": result("b", output="\ud800 \x00 \u2028 é")}
    assert read.is_complete
    assert path.stat().st_mode & 0o077 == 0, "answers are for their owner"


@given(st.data())
def test_a_file_that_is_cut_anywhere_continues_after_its_last_whole_line(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    whole = folder / "whole.jsonl"
    with ResultsFile(whole) as file:
        file.begin(HEADER)
        file.append(result("a"))
    content = whole.read_bytes()
    length = data.draw(st.integers(0, len(content)))
    cut = folder / "cut.jsonl"
    cut.write_bytes(content[:length])
    with ResultsFile(cut) as file:
        if file.results is None:
            file.begin(HEADER)
        assert set(file.results.by_case) <= {"a"}
        file.append(result("a"))
        file.append(result("b"))
    assert read_results(cut).by_case == {"a": result("a"), "b": result("b")}


def test_the_last_result_of_a_case_counts(path):
    with ResultsFile(path) as file:
        file.append(result("a", 0.0))
    assert read_results(path).by_case["a"].scores["exact"].value == 0


def test_two_commands_do_not_write_one_file(path):
    with ResultsFile(path), pytest.raises(ResultsError, match="another command is at work"), ResultsFile(path):
        pass
    with ResultsFile(path) as file:
        assert file.results.is_complete


@pytest.mark.parametrize(
    "line", ["{}", "[]", "x", '{"kind": "result"}', json.dumps({**HEADER.model_dump(), "format": 2})]
)
def test_a_line_that_is_no_result_is_named(path, line):
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ResultsError, match="line 4 of"):
        read_results(path)
    with pytest.raises(ResultsError, match="line 4 of"), ResultsFile(path):
        pass


def test_files_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(ResultsError, match=r"cannot use .*no such file"):
        read_results(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ResultsError, match="is empty"):
        read_results(tmp_path / "empty.jsonl")
    with pytest.raises(ResultsError, match="cannot use"), ResultsFile(tmp_path / "empty.jsonl" / "x.jsonl"):
        pass
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()
    with pytest.raises(ResultsError, match="is a directory"), ResultsFile(folder):
        pass
    assert not any(folder.iterdir())
