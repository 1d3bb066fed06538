import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.usage import TokenUsage
from pagantic_common.settings import load_settings
from services.orchestrator.core.cost import Prices, PriceTableError, cost_usd, parse_prices, prices_of
from services.orchestrator.settings import OrchestratorSettings

counts = st.integers(0, 10**9)
usages = st.builds(
    lambda fresh, cached, output: TokenUsage(fresh + cached, cached, output_tokens=output), counts, counts, counts
)
amounts = st.floats(0, 1e6)
SETTING = "PAGANTIC_ORCHESTRATOR_PRICES"


def test_cached_tokens_have_a_price_of_their_own_and_reasoning_is_output():
    usage = TokenUsage(prompt_tokens=1_000_000, cached_prompt_tokens=400_000, reasoning_tokens=9, output_tokens=500_000)
    assert cost_usd(usage, Prices(2.0, 0.5, 10.0)) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.5 * 10)


def test_without_prices_there_is_no_cost_and_free_is_not_the_same():
    assert cost_usd(TokenUsage(prompt_tokens=5), None) is None
    assert cost_usd(TokenUsage(prompt_tokens=5), Prices(0, 0, 0)) == 0


@given(usages, usages, st.builds(Prices, amounts, amounts, amounts))
def test_the_cost_of_two_is_the_sum_of_their_costs_and_none_is_negative(one, other, prices):
    assert cost_usd(one, prices) >= 0
    assert cost_usd(one + other, prices) == pytest.approx(cost_usd(one, prices) + cost_usd(other, prices))


def test_a_table_names_models_and_the_default_one():
    text = '{"default": {"prompt": 1, "output": 4.5}, "big": {"prompt": 3, "cached_prompt": 0, "output": 9}}'
    table = parse_prices(text)
    assert prices_of(table, "") == prices_of(table, "default") == Prices(1.0, 1.0, 4.5)
    assert prices_of(table, "big") == Prices(3.0, 0.0, 9.0)
    assert prices_of(table, "small") is None
    assert prices_of(parse_prices('{"": {"prompt": 1, "output": 2}}'), "default") == Prices(1.0, 1.0, 2.0)
    assert parse_prices(" ") == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "it is not JSON: line 1"),
        ('{"a": {"prompt": NaN, "output": 1}}', "NaN is not JSON"),
        ("[]", "must be a JSON object of models"),
        ('{"a": 3}', "'a' must be a JSON object of prompt, cached_prompt, output"),
        ('{"a": {"prompt": 1}}', "'a' lacks the price 'output'"),
        ('{"a": {"output": 1}}', "'a' lacks the price 'prompt'"),
        ('{"a": {"prompt": 1, "output": 1, "input": 1}}', "'a' has no price named 'input'"),
        ('{"a": {"prompt": -1, "output": 1}}', "'a': 'prompt' must be a number from 0"),
        ('{"a": {"prompt": 1, "output": "1"}}', "'a': 'output' must be a number"),
        ('{"a": {"prompt": true, "output": 1}}', "'a': 'prompt' must be a number"),
        ('{"a": {"prompt": 1e999, "output": 1}}', "'a': 'prompt' must be a number"),
        ('{"": {"prompt": 1, "output": 1}, "default": {"prompt": 1, "output": 1}}', "are the same model"),
    ],
)
def test_what_is_no_table_of_prices_is_named(text, wrong):
    with pytest.raises(PriceTableError) as caught:
        parse_prices(text)
    assert wrong in str(caught.value)


def test_the_setting_is_parsed_and_a_wrong_one_stops_at_start_naming_what_is_wrong(monkeypatch, capsys):
    assert load_settings(OrchestratorSettings).prices == {}
    monkeypatch.setenv(SETTING, json.dumps({"default": {"prompt": 1, "output": 2}}))
    assert load_settings(OrchestratorSettings).prices == {"": Prices(1.0, 1.0, 2.0)}
    monkeypatch.setenv(SETTING, "")
    assert load_settings(OrchestratorSettings).prices == {}
    for text, wrong in (('{"a": {"prompt": 1}}', "'a' lacks the price 'output'"), ("{", "it is not JSON")):
        monkeypatch.setenv(SETTING, text)
        with pytest.raises(SystemExit) as caught:
            load_settings(OrchestratorSettings)
        assert caught.value.code == 78
        told = capsys.readouterr().err
        assert f"configuration error: {SETTING}: " in told
        assert wrong in told
