"""Each field of a request changes what the other services get or what the caller gets, is refused, or is documented.

A field is set alone in a request of each mode. `Recording` has what the other services get, as the adapters send it.
"""

import asyncio
import functools
import json
import time
from collections import Counter

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict

from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import ToolCall
from pagantic_common.telemetry.scope import current_deadline
from services.orchestrator.adapters.inference.grpc_inference import decide_requests, infer_request, sample_request
from services.orchestrator.core.model.contract import RetryPolicy
from tests.support.examples import sample
from tests.support.orchestrator_app import execute, orchestrator
from tests.support.scripted_services import (
    ScriptedConstraint,
    ScriptedContext,
    ScriptedInference,
    ScriptedTools,
    answer,
    scripted_services,
)

SCHEMA = '{"type":"object"}'
SAID = [{"role": "ROLE_USER", "content": "hi"}]
STEP = {"name": "say", "kind": "infer"}
TOOL_STEP = {"name": "say", "kind": "infer", "parameters_json": '{"tools": ["clock"]}'}
QUESTION = {"instructions": "It is polite.", "predicate": {}}
CONTEXT = {"context": {"collection": "c"}}
# A request of each kind that has nothing to spare.
BASES = {
    "CHAT": {"mode": "MODE_CHAT", "messages": SAID},
    "text_prompt": {"mode": "MODE_CHAT", "text_prompt": "Once upon a time"},
    "STRUCTURED": {"mode": "MODE_STRUCTURED", "messages": SAID, "output": {"schema_json": SCHEMA}},
    "PLAN": {"mode": "MODE_PLAN", "messages": SAID, "plan": {"steps": [STEP, TOOL_STEP | {"name": "look"}]}},
    "planned": {"mode": "MODE_PLAN", "messages": SAID},
    "REDUNDANT": {"mode": "MODE_REDUNDANT", "messages": SAID, "output": {"schema_json": SCHEMA}},
    "DECIDE": {"mode": "MODE_DECIDE", "messages": SAID, "decisions": {"questions": [QUESTION]}},
}
# A value of each field that is not its default.
VALUES = {
    "prompt.text": "Be brief.",
    "prompt.instructions": {"base": "Be brief."},
    "hints.max_tokens": 7,
    "hints.timeout": "2s",
    "hints.temperature": 0.3,
    "hints.top_p": 0.4,
    "hints.seed": 5,
    "hints.tool_choice": {"mode": "TOOL_CHOICE_MODE_NONE"},
    "hints.max_tool_rounds": 1,
    "hints.model": "other",
    "hints.options_json": '{"a":1}',
    "hints.stop": ["END"],
    "hints.top_k": 3,
    "hints.min_p": 0.1,
    "hints.repetition_penalty": 1.1,
    "hints.presence_penalty": 0.5,
    "hints.frequency_penalty": 0.5,
    "hints.logit_bias": {5: 1.0},
    "hints.top_logprobs": 1,
    "hints.priority": -1,
    "hints.reasoning": {"mode": "REASONING_MODE_ON"},
    "output.schema_json": '{"type":"object","properties":{}}',
    "output.grammar": 'root ::= "a"',
    "output.grammar_name": "yes-no",
    "output.decoder_constraint": False,
    "output.repair_allowed": False,
    "output.strict_validation": False,
    "output.schema_in_prompt": "SCHEMA_IN_PROMPT_ON",
    "output.citations": {},
    "tools": ["clock"],
    "context.retriever": "RETRIEVER_KEYWORD",
    "context.collection": "d",
    "context.max_chunks": 2,
    "context.min_score": 0.1,
    "context.placement": "PLACEMENT_AFTER_SYSTEM",
    "context.rerank": {"top_k": 1},
    "context.max_tokens": 9,
    "context.include_tools": True,
    "context.include_schema": True,
    "context.required": True,
    "context.role": "CONTEXT_ROLE_SYSTEM",
    "context.filter": "source != ''",
    "context.fusion": "FUSION_WEIGHTED",
    "context.vector_weight": 0.2,
    "context.diversity": 0.5,
    "context.expansion": {"neighbours": 1},
    "context.query_expansion": {"queries": 1},
    "context.answerability": {"min_probability": 0.5},
    "context.smoothing": 10.0,
    "plan.steps": [STEP | {"parameters_json": '{"prompt": "Sing."}'}],
    "plan.policy": {"max_steps": 1},
    "voting.n": 2,
    "voting.strategy": "VOTING_STRATEGY_UNANIMITY",
    "voting.min_agreement": 0.9,
    "voting.early_stop": True,
    "rules": [{"name": "r", "expression": "true"}],
    "semantic_intent": "It is polite.",
    "retry.max_retries": 1,
    "retry.backoff": "0.01s",
    "retry.kind": "BACKOFF_KIND_EXPONENTIAL",
    "client_tools": [{"name": "open_door", "parameters_json": SCHEMA}],
    "tool_rules": [{"tool": "clock", "action": "TOOL_ACTION_DENY"}],
    "decisions": {"questions": [QUESTION | {"name": "q"}]},
}
# The tool that the steps of the plan name is allowed without `tools`, so that another name shows the effect.
VALUES_OF_KINDS = {("PLAN", "tools"): ["bell"]}
# Fields that say what the request is, how it is kept, or which experiment it is part of.
ABOUT = {
    *("request_id", "session_id", "trace_id", "messages", "mode", "background", "keep_request", "metadata"),
    *("text_prompt", "replay", "variant", "without_experiments", "prompt.template", "plan.trace"),
}
GROUPS = ("prompt", "hints", "output", "context", "plan", "voting", "retry")
# What has no effect and is not refused, with the reason, by kind of request. `*` is every kind.
WITHOUT_EFFECT = {
    "STRUCTURED": {
        "hints.tool_choice": "NONE may be sent where no tool is offered",
        "tool_rules": "STRUCTURED takes rules also where it offers no tool",
        "retry.kind": "without a backoff there is no wait",
    },
    "PLAN": {"retry.kind": "without a backoff there is no wait"},
    "REDUNDANT": {"hints.tool_choice": "NONE may be sent where no tool is offered"},
}


def test_each_field_of_the_contract_has_a_value():
    fields = execution_pb2.SystemRequest.DESCRIPTOR.fields
    names = {field.name for field in fields if field.name not in GROUPS}
    for field in fields:
        if field.name in GROUPS:
            names |= {f"{field.name}.{each.name}" for each in field.message_type.fields}
    assert names == VALUES.keys() | ABOUT


class Recording:
    """What the other services get and what the caller gets, as text, in order within each kind."""

    def __init__(self):
        self.seen = Counter()

    def note(self, kind, *parts):
        self.seen[kind, str(parts)] += 1


class RecordingInference(ScriptedInference):
    def __init__(self, recording, *outputs):
        super().__init__(*outputs)
        self.recording = recording

    def _note(self, kind, request):
        left_s = current_deadline().remaining_s(time.monotonic())
        self.recording.note(kind, request, "soon" if left_s is not None and left_s < 3 else "")

    async def infer(self, command, hints):
        self._note("infer", infer_request(command, hints))
        async for part in super().infer(command, hints):
            yield part

    async def sample(self, command, hints):
        self._note("sample", sample_request(command, hints))
        async for part in super().sample(command, hints):
            yield part

    async def decide(self, command, hints):
        self._note("decide", decide_requests(command, hints))
        return await super().decide(command, hints)

    async def score(self, command, hints, continuations):
        self.recording.note("score", hints.model, continuations)
        return await super().score(command, hints, continuations)


class RecordingConstraint(ScriptedConstraint):
    def __init__(self, recording, *invalid):
        super().__init__(*invalid)
        self.recording = recording

    async def compile(self, output, sources=()):
        self.recording.note("compile", output.schema_json, output.grammar, output.grammar_name, output.citations)
        return await super().compile(output, sources)

    async def compile_rules(self, request):
        self.recording.note("rules", request.rules)
        await super().compile_rules(request)

    async def enforce(self, text, request, *, is_decoder_enforced, sources=()):
        parts = (text, request.output, request.rules, request.semantic_intent, request.hints.model, is_decoder_enforced)
        self.recording.note("enforce", *parts)
        return await super().enforce(text, request, is_decoder_enforced=is_decoder_enforced, sources=sources)


class RecordingTools(ScriptedTools):
    def __init__(self, recording):
        super().__init__()
        self.recording = recording

    async def list_tools(self, names):
        self.recording.note("tools", names)
        return await super().list_tools(names)

    async def execute(self, call, report):
        self.recording.note("call", call)
        return await super().execute(call, report)


class RecordingContext(ScriptedContext):
    def __init__(self, recording, *chunks):
        super().__init__(*chunks)
        self.recording = recording

    async def build(self, query, policy, model, more_queries=()):
        self.recording.note("build", query, policy, model, more_queries)
        return await super().build(query, policy, model, more_queries)

    async def retrieve(self, query, policy):
        self.recording.note("retrieve", query, policy)
        return await super().retrieve(query, policy)

    async def rerank(self, query, chunks, ranking):
        self.recording.note("rerank", query, ranking)
        return await super().rerank(query, chunks, ranking)


CALL = ToolCall("c1", "clock", "{}")
GOOD, OTHER, BAD = '{"a":1}', '{"a":2}', '{"a":'
# What the model says: an answer; a call and then two answers of which the first is not valid; answers that differ.
SCRIPTS = (
    lambda: [answer(GOOD)],
    lambda: [answer("", calls=[CALL]), answer(BAD), answer(GOOD)],
    lambda: [answer(GOOD), answer(GOOD), answer(OTHER)],
)
NOT_TOLD = {"request_id", "session_id", "duration", "started_at", "ended_at"}


def told(value):
    """Return a response without ids and times."""
    if isinstance(value, dict):
        return {name: told(part) for name, part in value.items() if name not in NOT_TOLD}
    if isinstance(value, list):
        return [told(part) for part in value]
    return value


async def recorded(tmp_path_factory, fields, script):
    """Return what the services and the caller get. Raises InvalidRequest if the request is refused."""
    recording = Recording()
    services = scripted_services(
        inference=RecordingInference(recording, *script()),
        constraint=RecordingConstraint(recording, BAD),
        tools=RecordingTools(recording),
        context=RecordingContext(recording),
    )
    wait_s = RetryPolicy.wait_s

    def noted_wait(policy, retry, draw):
        waits_s = wait_s(policy, retry, draw)
        recording.note("wait", waits_s > 0, policy.is_exponential and waits_s > 0)
        return waits_s

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RetryPolicy, "wait_s", noted_wait)
        async with orchestrator(tmp_path_factory.mktemp("journal"), services) as stub:
            response = await execute(stub, ParseDict(fields, execution_pb2.SystemRequest()))
    recording.note("response", told(MessageToDict(response, preserving_proto_field_name=True)))
    return recording.seen


def with_value(base, path, value):
    """Return a request with one more field, and the request without it."""
    group, _, name = path.partition(".")
    if not name:
        return base, base | {group: value}
    before = base | CONTEXT if group == "context" and group not in base else base
    return before, before | {group: {**before.get(group, {}), name: value}}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", BASES)
async def test_a_field_has_an_effect_or_is_refused_or_is_documented(kind, tmp_path_factory):
    @functools.cache
    def baseline(encoded, script):
        return asyncio.create_task(recorded(tmp_path_factory, json.loads(encoded), script))

    async def has_effect(before, after):
        for script in SCRIPTS:
            try:
                seen = await recorded(tmp_path_factory, after, script)
            except InvalidRequest:
                return True
            if seen != await baseline(json.dumps(before), script):
                return True
        return False

    fields, first = list(VALUES.items()), list(BASES).index(kind) % 4
    tried, idle = dict(sample(fields[first:] + fields[:first], 4)), set()
    for path, value in tried.items():
        before, after = with_value(BASES[kind], path, VALUES_OF_KINDS.get((kind, path), value))
        if before != after and not await has_effect(before, after):
            idle.add(path)
    assert idle == WITHOUT_EFFECT.get(kind, {}).keys() & tried.keys()
