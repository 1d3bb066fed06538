"""The file of guards: what it may say, and what is said of a wrong one."""

import json

import pytest

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.guards.plugin import GuardStage
from services.orchestrator.adapters.guards.guards_file import read_guards_file
from services.orchestrator.core.guards.rules import GuardAction, OnFailure, guards_request, rules_for

SECRETS = {"plugin": "secrets", "stages": ["input", "output"]}


def written(tmp_path, content):
    path = tmp_path / "guards.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_guards_keep_their_order_and_have_careful_defaults(tmp_path):
    length = {
        "plugin": "length",
        "name": "short",
        "stages": ["tool_results"],
        "action": "block",
        "on_failure": "open",
        "timeout_s": 1,
        "tenants": ["acme"],
        "options": {"max_chars": 9},
    }
    content = read_guards_file(written(tmp_path, {"guards": [SECRETS, length], "workers": 3}))
    first, second = content.rules
    assert content.workers == 3
    assert (first.name, first.action, first.on_failure) == ("secrets", GuardAction.BLOCK, OnFailure.CLOSED)
    assert (second.name, second.on_failure, second.options_json) == ("short", OnFailure.OPEN, '{"max_chars":9}')
    assert rules_for(content.rules, GuardStage.TOOL_RESULTS, "acme") == (second,)
    assert rules_for(content.rules, GuardStage.TOOL_RESULTS, "other") == ()
    assert rules_for(content.rules, GuardStage.OUTPUT, "other") == (first,)
    assert guards_request([second], "acme")
    assert not guards_request([second], "other")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON: line 1 column 2"),
        ({}, "guards: Field required"),
        ({"guards": []}, "guards: List should have at least 1 item"),
        ({"guards": [{"plugin": "secrets", "stages": ["inputs"]}]}, r"guards.0.stages.0: Input should be 'input'"),
        ({"guards": [{"plugin": "secrets", "stages": []}]}, r"guards.0.stages: List should have at least 1"),
        ({"guards": [{**SECRETS, "action": "warn"}]}, "guards.0.action: Input should be 'block' or 'redact'"),
        ({"guards": [{**SECRETS, "stage": "input"}]}, "guards.0.stage: Extra inputs are not permitted"),
        ({"guards": [{**SECRETS, "timeout_s": 0}]}, "guards.0.timeout_s: Input should be greater than 0"),
        ({"guards": [SECRETS, SECRETS]}, "two guards with the name 'secrets'"),
        ({"guards": [SECRETS], "folders": ["models"]}, "'models' in folders: it must be the whole path of a folder"),
        ({"guards": [SECRETS], "folders": ["/no/such"]}, "'/no/such' in folders"),
        ({"guards": [SECRETS], "workers": 0}, "workers: Input should be greater than or equal to 1"),
        (" " * (1024 * 1024 + 1), "has more than 1048576 bytes"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path, content, message):
    with pytest.raises(InvalidRequest, match=message) as refused:
        read_guards_file(written(tmp_path, content))
    assert str(refused.value).startswith("GUARDS_FILE ")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidRequest, match="cannot be read: No such file"):
        read_guards_file(tmp_path / "none.json")
