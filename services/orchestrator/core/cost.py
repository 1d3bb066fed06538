"""Computes the cost of inferences from a table of prices per model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.domain.usage import TokenUsage

DEFAULT_MODEL = ""  # alias for requests that name no model; written `default` in a table
MAX_PRICE_USD = 1e9
_TOKENS_PER_PRICE = 1_000_000
_NAMES = ("prompt", "cached_prompt", "output")


class PriceTableError(ValueError):
    """Raised if the text of a price table is invalid. The message locates the error."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of one model in USD per million tokens.

    `cached_prompt_usd` is the price of prompt tokens from the KV cache.
    """

    prompt_usd: float
    cached_prompt_usd: float
    output_usd: float


def parse_prices(text: str) -> dict[str, Prices]:
    """Parse a JSON object `{model: {"prompt", "cached_prompt", "output"}}`. Empty text yields an empty table.

    `cached_prompt` defaults to the price of `prompt`. Raises PriceTableError if the text is invalid.
    """
    if not text.strip():
        return {}
    try:
        table = parse_json(text)
    except JsonTextError as error:
        raise PriceTableError(f"it is not JSON: {error}") from None
    if not isinstance(table, dict):
        raise PriceTableError("it must be a JSON object of models")
    if DEFAULT_MODEL in table and "default" in table:
        raise PriceTableError('"" and "default" are the same model: give one of them')
    return {_alias_of(model): _prices(model, entry) for model, entry in table.items()}


def prices_of(table: Mapping[str, Prices], model: str) -> Prices | None:
    """Return a model's prices, or None if the table does not contain the model.

    An empty alias selects the default model.
    """
    return table.get(_alias_of(model))


def highest_prices(table: Mapping[str, Prices]) -> Prices | None:
    """Return the highest price of each kind in a table, or None if the table is empty."""
    if not table:
        return None
    return Prices(
        max(prices.prompt_usd for prices in table.values()),
        max(prices.cached_prompt_usd for prices in table.values()),
        max(prices.output_usd for prices in table.values()),
    )


def prices_for(table: Mapping[str, Prices], asked: str, served: str = "") -> Prices | None:
    """Return the prices of the model that served a request, or else the prices of the requested model."""
    return (prices_of(table, served) if served else None) or prices_of(table, asked)


def _alias_of(model: str) -> str:
    if model == "default":
        return DEFAULT_MODEL
    return model


def cost_usd(usage: TokenUsage, prices: Prices | None) -> float | None:
    """Return the cost of a usage, or None if there are no prices. Reasoning tokens count as output tokens."""
    if prices is None:
        return None
    cached = min(usage.cached_prompt_tokens, usage.prompt_tokens)
    total = (
        (usage.prompt_tokens - cached) * prices.prompt_usd
        + cached * prices.cached_prompt_usd
        + usage.output_tokens * prices.output_usd
    )
    return total / _TOKENS_PER_PRICE


def _prices(model: str, entry: Any) -> Prices:
    if not isinstance(entry, dict):
        raise PriceTableError(f"{model!r} must be a JSON object of {', '.join(_NAMES)}")
    if unknown := sorted(entry.keys() - set(_NAMES)):
        raise PriceTableError(f"{model!r} has no price named {unknown[0]!r}: it has {', '.join(_NAMES)}")
    if missing := [name for name in ("prompt", "output") if name not in entry]:
        raise PriceTableError(f"{model!r} lacks the price {missing[0]!r}")
    prices = {name: _price(model, name, price) for name, price in entry.items()}
    return Prices(prices["prompt"], prices.get("cached_prompt", prices["prompt"]), prices["output"])


def _price(model: str, name: str, price: Any) -> float:
    is_number = isinstance(price, int | float) and not isinstance(price, bool)
    if not is_number or not 0 <= price <= MAX_PRICE_USD:
        limit = f"{MAX_PRICE_USD:.0f}"
        raise PriceTableError(f"{model!r}: {name!r} must be a number from 0 to {limit}, in USD per million tokens")
    return float(price)
