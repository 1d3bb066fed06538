"""JSONTestSuite: what is JSON, and a repair that lives through everything."""

import json
import time

import pytest

from services.constraint.core.repair.json_repair import is_json, repair_json

HANGS_S = 2.0


def texts(folder, prefix):
    """Files as the service gets them: text. What is not UTF-8 cannot reach it, so it is no JSON."""
    for path in sorted(folder.glob(f"{prefix}*.json")):
        try:
            yield path.name, path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            yield path.name, None


def test_the_strict_parser_takes_what_is_json_and_nothing_else(suites):
    folder = suites / "jsontestsuite" / "test_parsing"
    accepted = [name for name, text in texts(folder, "y_") if text is not None and is_json(text)]
    assert len(accepted) == len(list(folder.glob("y_*"))) == 95
    refused = [name for name, text in texts(folder, "n_") if text is None or not is_json(text)]
    assert len(refused) == len(list(folder.glob("n_*"))) == 188


@pytest.mark.timeout(120)
def test_repair_never_raises_and_never_hangs(suites):
    files = [item for prefix in "yni" for item in texts(suites / "jsontestsuite" / "test_parsing", prefix)]
    assert len(files) == 318
    for name, text in files:
        started_s = time.perf_counter()
        result = repair_json(text if text is not None else "\ufffd")
        assert time.perf_counter() - started_s < HANGS_S, name
        assert not result.valid or json.loads(result.text) is not Ellipsis, name
        if text is not None and is_json(text):
            assert result.text == text, name
