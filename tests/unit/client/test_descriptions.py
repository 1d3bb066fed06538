"""Responses in words."""

from __future__ import annotations

from pagantic.common.v1 import usage_pb2
from pagantic_common.client.descriptions import describe_usage


def test_usage_has_a_rate_where_tokens_were_decoded():
    usage = usage_pb2.TokenUsage(prompt_tokens=36, cached_prompt_tokens=24, output_tokens=1, tokens_per_second=26.4)
    assert describe_usage(usage) == "36 prompt tokens (24 cached), 1 output token, decoded at 26 tokens/s"


def test_usage_has_no_rate_where_nothing_was_decoded():
    assert describe_usage(usage_pb2.TokenUsage()) == "0 prompt tokens (0 cached), 0 output tokens"
