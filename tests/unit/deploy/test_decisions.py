import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "deploy" / "decisions"
RECORDS = sorted(FOLDER.iterdir())


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_record_is_short_and_has_its_three_parts(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    assert lines[0].startswith(f"# {path.name[:4]} ")
    assert [line for line in lines if line.startswith("## ")] == ["## Context", "## Decision", "## Consequences"]


def test_records_are_numbered_without_gaps():
    assert all(re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", path.name) for path in RECORDS)
    assert [int(path.name[:4]) for path in RECORDS] == list(range(1, len(RECORDS) + 1))
