"""Requests to a running system, one kind for each mode, and what must hold of their journals whatever happened."""

import json
import time
import uuid
from dataclasses import dataclass, field

import grpc

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import collection_pb2, context_service_pb2, context_service_pb2_grpc, policy_pb2
from pagantic.inference.v1 import generation_pb2, inference_service_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb

STORY = "Tell a very long story about the sea."
COLLECTION = "live"
MANY = 1500  # tokens: seconds of decoding
ONCE = plan_pb2.RetryPolicy(max_retries=0)
CALL_S = 100.0  # of the gRPC call: longer than any hints.timeout here, so that the orchestrator's own end is seen
TERMINAL = {
    execution_pb2.LIFECYCLE_STATE_COMPLETE,
    execution_pb2.LIFECYCLE_STATE_ERROR,
    execution_pb2.LIFECYCLE_STATE_CANCELLED,
}
REQUIRED = message_pb2.ToolChoice(mode=message_pb2.TOOL_CHOICE_MODE_REQUIRED)
CONTEXT = policy_pb2.ContextPolicy(collection=COLLECTION, max_chunks=1)
NOT_EMPTY = contract_pb2.Rule(name="not empty", builtin=contract_pb2.BuiltinRule(kind="not_empty"))


def schema_of(**properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


LONG_TALE = schema_of(tale={"type": "string", "minLength": 3000, "maxLength": 4000})
TALE = schema_of(tale={"type": "string", "minLength": 40, "maxLength": 120}, sad={"type": "boolean"})


ENDLESS = {0: -100.0, 2: -100.0}  # the bundled model's tokens that end a text: only max_tokens ends such an answer


def request(text, mode, *, max_tokens=32, timeout_s=60.0, tool_choice=None, schema=None, logit_bias=None, **fields):
    message = message_pb2.Message(role=message_pb2.ROLE_USER, content=text)
    hints = execution_pb2.ExecutionHints(
        max_tokens=max_tokens, temperature=0, seed=1, tool_choice=tool_choice, logit_bias=logit_bias
    )
    hints.timeout.FromMilliseconds(round(timeout_s * 1000))
    if schema is not None:
        fields["output"] = contract_pb2.OutputContract(schema_json=json.dumps(schema))
    fields.setdefault("request_id", str(uuid.uuid4()))
    return execution_pb2.SystemRequest(mode=mode, messages=[message], hints=hints, **fields)


def again(work):
    """Return the same request under another id."""
    fresh = execution_pb2.SystemRequest()
    fresh.CopyFrom(work)
    fresh.request_id = str(uuid.uuid4())
    return fresh


def chat(**fields):
    """Return a turn that must call a tool before it answers, with context."""
    text = f"What is 17 * 23? Then: {STORY}"
    fields = {"session_id": str(uuid.uuid4()), "max_tokens": 160, "context": CONTEXT, **fields}
    return request(text, execution_pb2.MODE_CHAT, tools=["calculator"], tool_choice=REQUIRED, **fields)


def say(text, **fields):
    """Return a turn of one text, that is not tried again."""
    if "output" in fields:  # Without a contract no turn is tried again, and a request that says so is refused.
        fields["retry"] = ONCE
    return request(text, execution_pb2.MODE_CHAT, **fields)


def structured(**fields):
    fields = {"schema": TALE, "rules": [NOT_EMPTY], "max_tokens": 160, **fields}
    return request(STORY, execution_pb2.MODE_STRUCTURED, **fields)


def redundant(**fields):
    fields = {"schema": TALE, "max_tokens": 160, **fields}
    work = request(STORY, execution_pb2.MODE_REDUNDANT, **fields)
    work.hints.ClearField("temperature")
    return work


def step(name, kind, parameters=None, **fields):
    return plan_pb2.Step(name=name, kind=kind, parameters_json=json.dumps(parameters or {}), **fields)


FIND = step("find", "retrieve", {"collection": COLLECTION, "max_chunks": 1})
SUM = step("sum", "tool", {"tool": "calculator", "arguments": {"expression": "17 * 23"}})
TELL = step("tell", "infer", {"prompt": STORY})
CHECK = step("check", "validate", input=plan_pb2.StepInput(text="It is said."))


def plan(*steps, **fields):
    execution_plan = plan_pb2.ExecutionPlan(steps=steps or (FIND, TELL, SUM, CHECK))
    return request(STORY, execution_pb2.MODE_PLAN, plan=execution_plan, **fields)


def infer(stub, text="Go on.", timeout_s=60, tool_choice=None, tools=(), **fields):
    """Ask the inference service itself."""
    message = message_pb2.Message(role=message_pb2.ROLE_USER, content=text)
    prompt = generation_pb2.ChatPrompt(messages=[message], tools=tools, tool_choice=tool_choice)
    return stub.Infer(inference_service_pb2.InferRequest(chat=prompt, **fields), timeout=timeout_s)


def is_text(event):
    return event.HasField("content_delta")


def is_action(action):
    return lambda event: event.action == action


def ingest(address):
    """Store what CONTEXT and FIND look for."""
    with grpc.insecure_channel(address) as channel:
        document = collection_pb2.Document(source="sea.txt", content="The sea is wide, and tells a long story.")
        ask = context_service_pb2.IngestRequest(collection=COLLECTION, documents=[document])
        context_service_pb2_grpc.ContextServiceStub(channel).Ingest(ask, wait_for_ready=True, timeout=30)


@dataclass
class Told:
    """What a caller got: the events that came, and either a response or a status."""

    events: list[event_pb2.ExecutionEvent] = field(default_factory=list)
    status: grpc.StatusCode | None = None
    took_s: float = 0.0

    @property
    def response(self):
        return self.events[-1].completed.response

    @property
    def code(self):
        return error_pb2.ErrorCode.Name(self.response.error.code).removeprefix("ERROR_CODE_")


def watch(stub, work, *deeds, timeout_s=CALL_S):
    """Run a request to its end. Each deed is a pair: done once, in their order, at the first event that it is for."""
    told, waiting = Told(), list(deeds)
    started_s = time.monotonic()
    try:
        for event in stub.ExecuteStream(work, timeout=timeout_s):
            told.events.append(event)
            if waiting and waiting[0][0](event):
                waiting.pop(0)[1]()
    except grpc.RpcError as error:
        told.status = error.code()
    told.took_s = time.monotonic() - started_s
    assert not waiting, f"what was waited for did not happen: {[event.action for event in told.events]}"
    return told


def check_ended(stub, request_id):
    """Assert that an execution has ended and its journal is whole; returns its events."""
    execution = stub.GetExecution(pb.GetExecutionRequest(request_id=request_id)).execution
    assert execution.state.current in TERMINAL
    events = timeline(stub, request_id)
    assert events[-1].completed.response == execution.response
    assert events[-2].transition.to_state == execution.state.current
    return events


def timeline(stub, request_id):
    """Return what is stored of an execution, which has no gaps."""
    events = list(stub.GetTimeline(pb.GetTimelineRequest(request_id=request_id)).events)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    return events


def session(stub, session_id):
    """Return the messages of a conversation; none of one that is not stored."""
    try:
        return list(stub.GetSession(pb.GetSessionRequest(session_id=session_id)).session.messages)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return []
        raise


def check_turns(stub, session_id, count):
    """Assert that a conversation has this many turns, each whole: asked, tools called with their results, answered."""
    turns = []
    for message in session(stub, session_id):
        if message.role == message_pb2.ROLE_USER:
            turns.append([])
        turns[-1].append(message)
    assert len(turns) == count
    for turn in turns:
        assert turn[-1].role == message_pb2.ROLE_ASSISTANT
        assert not turn[-1].tool_calls
        called = [call.id for message in turn for call in message.tool_calls]
        assert called == [message.tool_call_id for message in turn if message.tool_call_id]
