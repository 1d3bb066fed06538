"""Names from OpenTelemetry's conventions for generative AI, and the histograms that the conventions define.

The conventions are at https://github.com/open-telemetry/semantic-conventions-genai. Attributes never contain prompts,
arguments or answers.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pagantic_common.telemetry.metrics import make_histogram

PROVIDER: Final = "pagantic"

OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
WORKFLOW_NAME: Final = "gen_ai.workflow.name"
OUTPUT_TYPE: Final = "gen_ai.output.type"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_CHOICE_COUNT: Final = "gen_ai.request.choice.count"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_TOP_K: Final = "gen_ai.request.top_k"
REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
USAGE_REASONING_OUTPUT_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
DATA_SOURCE_ID: Final = "gen_ai.data_source.id"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - the name of an attribute

# The conventions recommend these bucket bounds.
_DURATION_BOUNDS_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKEN_BOUNDS = tuple(4**power for power in range(14))
_FIRST_BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_TOKEN_BOUNDS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)

CLIENT_OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
CLIENT_TOKEN_USAGE: Final = "gen_ai.client.token.usage"  # noqa: S105 - the name of a metric
CLIENT_TIME_TO_FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"
CLIENT_TIME_PER_OUTPUT_CHUNK: Final = "gen_ai.client.operation.time_per_output_chunk"
SERVER_REQUEST_DURATION: Final = "gen_ai.server.request.duration"
SERVER_TIME_TO_FIRST_TOKEN: Final = "gen_ai.server.time_to_first_token"  # noqa: S105 - the name of a metric
SERVER_TIME_PER_OUTPUT_TOKEN: Final = "gen_ai.server.time_per_output_token"  # noqa: S105 - the name of a metric


class Operation(StrEnum):
    """An operation of the conventions. DECIDE is pagantic's addition."""

    CHAT = "chat"
    EMBEDDINGS = "embeddings"
    RETRIEVAL = "retrieval"
    EXECUTE_TOOL = "execute_tool"
    INVOKE_WORKFLOW = "invoke_workflow"
    DECIDE = "decide"


class TokenType(StrEnum):
    """The kind of tokens that a value of the token metric counts."""

    INPUT = "input"
    OUTPUT = "output"


client_duration = make_histogram(
    CLIENT_OPERATION_DURATION, "GenAI operation duration.", unit="s", bounds=_DURATION_BOUNDS_S
)
client_tokens = make_histogram(
    CLIENT_TOKEN_USAGE, "Number of input and output tokens used.", unit="{token}", bounds=_TOKEN_BOUNDS
)
client_first_chunk = make_histogram(
    CLIENT_TIME_TO_FIRST_CHUNK, "Time until the first chunk of an answer came", unit="s", bounds=_DURATION_BOUNDS_S
)
client_output_chunk = make_histogram(
    CLIENT_TIME_PER_OUTPUT_CHUNK, "Time between two chunks of an answer", unit="s", bounds=_DURATION_BOUNDS_S
)
server_duration = make_histogram(
    SERVER_REQUEST_DURATION, "Time of a request until its last token", unit="s", bounds=_DURATION_BOUNDS_S
)
server_first_token = make_histogram(
    SERVER_TIME_TO_FIRST_TOKEN, "Time of a request until its first token", unit="s", bounds=_FIRST_BOUNDS_S
)
server_output_token = make_histogram(
    SERVER_TIME_PER_OUTPUT_TOKEN, "Time of each token after the first", unit="s", bounds=_TOKEN_BOUNDS_S
)
