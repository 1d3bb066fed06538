"""What inferences cost in money, by a table of prices per model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.usage import TokenUsage

DEFAULT_MODEL = ""  # the alias of requests that name no model; `default` in a table
MAX_PRICE_USD = 1e9
_TOKENS_PER_PRICE = 1_000_000
_NAMES = ("prompt", "cached_prompt", "output")


class PriceTableError(ValueError):
    """The text is no table of prices; the message says where."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Of one model, in USD per million tokens; `cached_prompt_usd` is of prompt tokens from the KV cache."""

    prompt_usd: float
    cached_prompt_usd: float
    output_usd: float


def parse_prices(text: str) -> dict[str, Prices]:
    """Return the prices by model of a JSON object `{model: {"prompt", "cached_prompt", "output"}}`; empty text is none.

    `cached_prompt` may be left out and is then the price of `prompt`. Raises PriceTableError.
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
    return {DEFAULT_MODEL if model == "default" else model: _prices(model, entry) for model, entry in table.items()}


def prices_of(table: Mapping[str, Prices], model: str) -> Prices | None:
    """Return the prices of a model's alias, empty for the default one; None when the table has none."""
    return table.get(DEFAULT_MODEL if model == "default" else model)


def cost_usd(usage: TokenUsage, prices: Prices | None) -> float | None:
    """Return what a usage costs; None without prices. Reasoning tokens are output tokens."""
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
    for name, price in entry.items():
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price <= MAX_PRICE_USD:
            limit = f"{MAX_PRICE_USD:.0f}"
            raise PriceTableError(f"{model!r}: {name!r} must be a number from 0 to {limit}, in USD per million tokens")
    cached_prompt = entry["cached_prompt"] if "cached_prompt" in entry else entry["prompt"]
    return Prices(float(entry["prompt"]), float(cached_prompt), float(entry["output"]))
