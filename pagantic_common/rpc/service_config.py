"""The service config of every channel, which determines the calls that gRPC itself retries.

A call is retried only before its first response, within its deadline, and while few calls fail. Each failed attempt
removes a token from the channel's budget, and each success returns a part of a token. If less than half of the tokens
are left, gRPC does not retry. A server can set the time of a retry, or forbid it, with `grpc-retry-pushback-ms`.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

MAX_ATTEMPTS = 3
BUDGET_TOKENS = 10
TOKENS_PER_SUCCESS = 0.2

# Calls that change nothing. All other calls are made only once, because tools and requests must not run twice.
RETRIED_METHODS = {
    "pagantic.inference.v1.InferenceService": (
        "Infer",
        "Embed",
        "ScorePairs",
        "Score",
        "Tokenize",
        "Detokenize",
        "CountTokens",
        "ListModels",
        "GetLoad",
        "DescribeEngine",
        "TuneEngine",
    ),
    "pagantic.constraint.v1.ConstraintService": (
        "Compile",
        "Enforce",
        "ValidateGrammar",
        "ValidateJson",
        "RepairJson",
        "NormalizeEnums",
        "ValidateSchema",
        "CompileRules",
        "ValidateRules",
        "ValidateSemantics",
    ),
    "pagantic.context.v1.ContextService": ("ListCollections", "Retrieve", "BuildContext", "Verify"),
    "pagantic.rerank.v1.RerankService": ("Rerank", "ListScorers"),
    "pagantic.tools.v1.ToolService": (
        "GetMcpPrompt",
        "GetToolOutcome",
        "ListMcpPrompts",
        "ListMcpResources",
        "ListMcpServers",
        "ListTools",
        "ReadMcpResource",
        "SearchTools",
    ),
}

_RETRIED_PATHS = frozenset(
    f"/{service}/{name}".encode() for service, names in RETRIED_METHODS.items() for name in names
)

_RETRY_POLICY = {
    "maxAttempts": MAX_ATTEMPTS,
    "initialBackoff": "0.1s",
    "maxBackoff": "0.3s",
    "backoffMultiplier": 2,  # gRPC adds jitter.
    "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
}


def is_retried(method: object) -> bool:
    """Return whether calls of a stub's method may be retried."""
    return getattr(method, "_method", b"") in _RETRIED_PATHS  # gRPC has no public name for a method's path.


def service_config(waits: Collection[str] = (), *, may_retry: bool = True) -> str:
    """Return the service config as JSON.

    For the methods in `waits`, gRPC does not retry calls refused for lack of capacity, because these calls wait in a
    queue. Without `may_retry`, gRPC does not repeat calls, because the caller has another replica.
    """
    names = [{"service": service, "method": name} for service, methods in RETRIED_METHODS.items() for name in methods]
    waiting = [name for name in names if name["method"] in waits]
    method_config = [{"name": [name for name in names if name not in waiting], "retryPolicy": _RETRY_POLICY}]
    if waiting:
        method_config.append(
            {"name": waiting, "retryPolicy": _RETRY_POLICY | {"retryableStatusCodes": ["UNAVAILABLE"]}}
        )
    config: dict[str, Any] = {
        # Health checking works only with round_robin, which also spreads calls over the pods of a headless Service.
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": ""},
    }
    if may_retry:
        config["methodConfig"] = method_config
        config["retryThrottling"] = {"maxTokens": BUDGET_TOKENS, "tokenRatio": TOKENS_PER_SUCCESS}
    return json.dumps(config)
