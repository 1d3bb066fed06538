"""A valid request for each rpc that does more than look something up, as JSON's values."""

SCHEMA = '{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],"additionalProperties":false}'
ASKED = [{"role": "ROLE_USER", "content": "What is the cat?"}]
CHUNK = {"id": "0", "content": "the cat sat", "source": "a", "score": 1.0, "score_kind": "bm25"}
CONTRACT = {"schema_json": SCHEMA}
CONTEXT = {"collection": "docs", "max_chunks": 3}
SHORT = {"max_tokens": 8}
TOOL_STEP = {
    "name": "sum",
    "kind": "tool",
    "parameters_json": '{"tool":"calculator","arguments":{"expression":"1+1"}}',
}
FIND_STEP = {"name": "find", "kind": "retrieve", "parameters_json": '{"collection":"docs"}'}
PLAN = {"mode": "MODE_PLAN", "messages": ASKED, "hints": SHORT, "plan": {"steps": [FIND_STEP, TOOL_STEP]}}
SYSTEM_REQUESTS = (
    {"mode": "MODE_CHAT", "messages": ASKED, "hints": SHORT},
    {"mode": "MODE_CHAT", "messages": ASKED, "hints": SHORT, "session_id": "fuzz-1", "tools": ["calculator"]},
    {"mode": "MODE_CHAT", "messages": ASKED, "hints": SHORT, "context": CONTEXT},
    {"mode": "MODE_STRUCTURED", "messages": ASKED, "hints": SHORT, "output": CONTRACT},
    {"mode": "MODE_REDUNDANT", "messages": ASKED, "hints": SHORT, "voting": {"n": 3}},
    {"mode": "MODE_DECIDE", "messages": ASKED, "decisions": {"questions": [{"instructions": "x", "predicate": {}}]}},
    PLAN,
    {
        "mode": "MODE_CHAT",
        "messages": ASKED,
        "hints": SHORT,
        "tool_rules": [{"tool": "c*", "action": "TOOL_ACTION_DENY"}],
    },
)

VALID = {
    "OrchestratorService/Execute": SYSTEM_REQUESTS,
    "OrchestratorService/ExecuteStream": SYSTEM_REQUESTS,
    "OrchestratorService/CreatePlan": ({"request": PLAN},),
    "OrchestratorService/GetTimeline": ({"request_id": "fuzz-1"},),
    "OrchestratorService/RenderPromptTemplate": ({"template": {"name": "a", "variables": {"b": "c"}}},),
    "OrchestratorService/UpdateSession": ({"session_id": "fuzz-1", "state_json": {"a": "1"}},),
    "OrchestratorService/Embed": ({"texts": ["the cat", "a mat"]},),
    "OrchestratorService/Rerank": ({"query": "cat", "texts": ["the cat", "a mat"], "top_n": 1},),
    "OrchestratorService/CountTokens": ({"texts": ["the cat"], "chat": {"messages": ASKED}},),
    "InferenceService/Infer": (
        {"text": "The cat", "max_tokens": 8},
        {"chat": {"messages": ASKED}, "max_tokens": 8},
        {"text": "a", "max_tokens": 8, "constraint": {"schema_json": SCHEMA}},
    ),
    "InferenceService/Score": ({"text": "The cat", "continuations": [" sat", " ran"]},),
    "InferenceService/Tokenize": ({"text": "the cat"},),
    "InferenceService/Detokenize": ({"tokens": [1, 2, 3]},),
    "InferenceService/Embed": ({"texts": ["the cat", "a mat"]},),
    "InferenceService/CountTokens": ({"texts": ["the cat"], "chat": {"messages": ASKED}},),
    "ConstraintService/Compile": (CONTRACT,),
    "ConstraintService/Enforce": ({"output": '{"ok":true}', "contract": CONTRACT},),
    "ConstraintService/ValidateGrammar": ({"grammar": 'root ::= "a"', "text": "a"},),
    "ConstraintService/NormalizeEnums": ({"document_json": '"Red"', "schema_json": '{"enum":["red"]}'},),
    "ConstraintService/ValidateSchema": ({"document_json": '{"ok":true}', "schema_json": SCHEMA},),
    "ConstraintService/RepairJson": ({"text": '{"ok":tru'},),
    "ConstraintService/ValidateRules": (
        {
            "output": "a",
            "rules": [{"name": "r", "expression": "output == 'a'"}, {"name": "b", "builtin": {"kind": "not_empty"}}],
        },
    ),
    "ConstraintService/ValidateSemantics": ({"output": "a cat", "intent": "names an animal"},),
    "ContextService/Ingest": ({"collection": "docs", "documents": [{"source": "a", "content": "the cat sat"}]},),
    "ContextService/Retrieve": ({"query": "cat", "policy": CONTEXT},),
    "ContextService/BuildContext": ({"query": "cat", "policy": CONTEXT, "chunks": [CHUNK]},),
    "RerankService/Rerank": (
        {"query": "cat", "chunks": [CHUNK]},
        {"query": "cat", "chunks": [CHUNK], "scorers": [{"scorer": "retriever"}, {"scorer": "embedding", "weight": 2}]},
        {"query": "cat", "chunks": [CHUNK], "scorer": "judge", "diversity": 0.5, "max_per_source": 1},
    ),
    "ToolService/SearchTools": ({"query": "what is the time", "names": ["clock"], "limit": 3},),
    "ToolService/ExecuteTool": (
        {"call": {"id": "1", "name": "calculator", "arguments_json": '{"expression":"1+1"}'}},
        {"call": {"id": "1", "name": "json_query", "arguments_json": '{"document":"[1]","query":"[0]"}'}},
    ),
}
