import pytest

from pagantic_common.domain.text.json_text import MAX_DEPTH, JsonTextError, parse_json


def nested(depth, mixed=False):
    if mixed:
        return '{"a":[' * (depth // 2) + "1" + "]}" * (depth // 2)
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("mixed", [False, True])
def test_json_may_be_nested_up_to_the_limit(mixed):
    assert parse_json(nested(MAX_DEPTH, mixed))
    with pytest.raises(JsonTextError, match="nested too deeply: at most 256 levels"):
        parse_json(nested(MAX_DEPTH + 2, mixed))


@pytest.mark.parametrize("depth", [1_000, 100_000, 1_000_000])
def test_the_limit_does_not_depend_on_the_interpreters_own(depth):
    with pytest.raises(JsonTextError, match="nested too deeply: at most 256 levels"):
        parse_json(nested(depth))


def test_only_levels_count_and_neither_siblings_nor_brackets_in_text():
    assert len(parse_json("[" + ",".join(["{}"] * 10_000) + "]")) == 10_000
    assert parse_json('"' + "[" * 1_000 + '"') == "[" * 1_000
