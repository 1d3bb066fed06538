"""Names shared by both ends of a call, or with dashboards: metadata keys, health names, error domain, metrics."""

from __future__ import annotations

from typing import Final

AUTHORIZATION_KEY: Final = "authorization"
REQUEST_ID_KEY: Final = "x-request-id"
SESSION_ID_KEY: Final = "x-session-id"
STEP_NAME_KEY: Final = "x-step-name-bin"
CAUSED_BY_KEY: Final = "x-caused-by-bin"

LIVENESS: Final = "liveness"
READINESS: Final = "readiness"

ERROR_DOMAIN: Final = "pagantic"

# OpenTelemetry's attributes of spans and metrics.
ERROR_TYPE: Final = "error.type"
RPC_SYSTEM: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
RPC_STATUS: Final = "rpc.response.status_code"
HTTP_ROUTE: Final = "http.route"
HTTP_METHOD: Final = "http.request.method"
HTTP_STATUS: Final = "http.response.status_code"
URL_PATH: Final = "url.path"
URL_SCHEME: Final = "url.scheme"

# Pagantic's own attributes of spans.
REQUEST_ID: Final = "pagantic.request_id"
MODE: Final = "pagantic.mode"
STATE: Final = "pagantic.state"
ATTEMPT: Final = "pagantic.attempt"
STEP_NAME: Final = "pagantic.step.name"
STEP_KIND: Final = "pagantic.step.kind"
EXPERIMENT_NAME: Final = "pagantic.experiment.name"
EXPERIMENT_VARIANT: Final = "pagantic.experiment.variant"
STAGE: Final = "pagantic.stage"
STAGE_OUTCOME: Final = "pagantic.stage.outcome"
VALIDATION_VALID: Final = "pagantic.validation.valid"

INFERENCE_QUEUE_SPAN: Final = "inference.queue"
INFERENCE_PREFILL_SPAN: Final = "inference.prefill"
INFERENCE_DECODE_SPAN: Final = "inference.decode"

INFERENCE_QUEUE_DURATION: Final = "pagantic_inference_queue_duration"
INFERENCE_QUEUED_REQUESTS: Final = "pagantic_inference_queued_requests"
INFERENCE_QUEUE_CAPACITY: Final = "pagantic_inference_queue_capacity"
INFERENCE_REFUSED_REQUESTS: Final = "pagantic_inference_refused_requests"
INFERENCE_PENDING_PROMPT_TOKENS: Final = "pagantic_inference_pending_prompt_tokens"
INFERENCE_RUNNING_SEQUENCES: Final = "pagantic_inference_running_sequences"
INFERENCE_SEQUENCE_CAPACITY: Final = "pagantic_inference_sequence_capacity"
INFERENCE_PARKED_BYTES: Final = "pagantic_inference_parked_bytes"
INFERENCE_PROMPT_TOKENS: Final = "pagantic_inference_prompt_tokens"
INFERENCE_CACHED_PROMPT_TOKENS: Final = "pagantic_inference_cached_prompt_tokens"
INFERENCE_STEP_AGE: Final = "pagantic_inference_step_age_seconds"
INFERENCE_KV_USED_TOKENS: Final = "pagantic_inference_kv_used_tokens"
INFERENCE_KV_CAPACITY_TOKENS: Final = "pagantic_inference_kv_capacity_tokens"
INFERENCE_KV_USED_RATIO: Final = "pagantic_inference_kv_used_ratio"
INFERENCE_CACHE_CONFIG: Final = "pagantic_inference_cache_config_info"
INFERENCE_OUTPUT_TOKENS: Final = "pagantic_inference_output_tokens"
INFERENCE_COMPUTED_TOKENS: Final = "pagantic_inference_computed_tokens"
INFERENCE_PREEMPTIONS: Final = "pagantic_inference_preemptions"
INFERENCE_DRAFTED_TOKENS: Final = "pagantic_inference_drafted_tokens"
INFERENCE_ACCEPTED_TOKENS: Final = "pagantic_inference_accepted_tokens"
INFERENCE_PREFIX_READ_TOKENS: Final = "pagantic_inference_prefix_read_tokens"
INFERENCE_PREFIX_WRITTEN_TOKENS: Final = "pagantic_inference_prefix_written_tokens"
INFERENCE_PREFIX_DROPPED_BLOCKS: Final = "pagantic_inference_prefix_dropped_blocks"

ORCHESTRATOR_REROUTED_CALLS: Final = "pagantic_orchestrator_rerouted_calls"
ORCHESTRATOR_RUNNING_EXECUTIONS: Final = "pagantic_orchestrator_running_executions"
ORCHESTRATOR_MAX_EXECUTIONS: Final = "pagantic_orchestrator_max_executions"
# A histogram by mode and error code; the code is empty if the execution succeeded. If an experiment assigned a variant
# to the request, the metrics of its execution have the labels experiment and variant.
ORCHESTRATOR_EXECUTION_DURATION: Final = "pagantic_orchestrator_execution_duration"
ORCHESTRATOR_TOOL_DURATION: Final = "pagantic_orchestrator_tool_duration"
ORCHESTRATOR_RETRIEVAL_DURATION: Final = "pagantic_orchestrator_retrieval_duration"
ORCHESTRATOR_VALIDATION_DURATION: Final = "pagantic_orchestrator_validation_duration"
ORCHESTRATOR_COST: Final = "pagantic_orchestrator_cost_usd"
ORCHESTRATOR_BUDGET_CHECK_DURATION: Final = "pagantic_orchestrator_budget_check_duration"
ORCHESTRATOR_GUARD_FINDINGS: Final = "pagantic_orchestrator_guard_findings"
ORCHESTRATOR_GUARD_FAILURES: Final = "pagantic_orchestrator_guard_failures"
ORCHESTRATOR_JOURNAL_WRITE_DURATION: Final = "pagantic_orchestrator_journal_write_duration"
ORCHESTRATOR_JOURNAL_FAILED_WRITES: Final = "pagantic_orchestrator_journal_failed_writes"
ORCHESTRATOR_JOURNAL_BYTES: Final = "pagantic_orchestrator_journal_bytes"
ORCHESTRATOR_JOURNAL_FREE_BYTES: Final = "pagantic_orchestrator_journal_free_bytes"

TLS_CERTIFICATE_EXPIRY: Final = "pagantic_tls_certificate_expiry"

WORKERS_BUSY: Final = "pagantic_workers_busy"
WORKERS_QUEUED: Final = "pagantic_workers_queued"
WORKERS_KILLED: Final = "pagantic_workers_killed"

# The name is gRPC's (proposal A66): a histogram by grpc.method and grpc.status.
RPC_CALL_DURATION: Final = "grpc.server.call.duration"
RPC_RUNNING_CALLS: Final = "pagantic_rpc_running_calls"
RPC_MAX_CALLS: Final = "pagantic_rpc_max_calls"
RPC_RETRIED_CALLS: Final = "pagantic_rpc_retried_calls"
RPC_REFUSED_CALLS: Final = "pagantic_rpc_refused_calls"
RPC_OPEN_CIRCUITS: Final = "pagantic_rpc_open_circuits"
RPC_WAITING_CALLS: Final = "pagantic_rpc_waiting_calls"  # The attribute names the service that the calls wait for.

# The name is OpenTelemetry's: a histogram by http.route, http.request.method and http.response.status_code.
HTTP_REQUEST_DURATION: Final = "http.server.request.duration"
HTTP_FIRST_CHUNK_DURATION: Final = "pagantic_http_first_chunk_duration"
HTTP_RUNNING_REQUESTS: Final = "pagantic_http_running_requests"
HTTP_MAX_REQUESTS: Final = "pagantic_http_max_requests"
HTTP_OPEN_STREAMS: Final = "pagantic_http_open_streams"
