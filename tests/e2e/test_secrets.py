"""Secrets are put into every input of a real system. None of them is in a log, trace, metric, audit or process list."""

import json
import sys
import urllib.request
import uuid
from contextlib import suppress

import grpc
import psutil

from pagantic.common.v1 import message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import collection_pb2, policy_pb2
from pagantic.context.v1 import context_service_pb2 as context_pb
from pagantic.context.v1 import context_service_pb2_grpc as context_rpc
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from tests.support.live_requests import request, schema_of, step

CHAT, STRUCTURED = execution_pb2.MODE_CHAT, execution_pb2.MODE_STRUCTURED
REDUNDANT, PLAN = execution_pb2.MODE_REDUNDANT, execution_pb2.MODE_PLAN


class Canaries:
    """Texts that occur nowhere else, by where they were put."""

    def __init__(self):
        self.by_place = {}

    def put(self, place):
        return self.by_place.setdefault(place, f"canary{uuid.uuid4().hex}")

    def found_in(self, data):
        return {place for place, text in self.by_place.items() if text.encode() in data}


def ask(system, service, method, message, *, key=None, metadata=()):
    """Make a call that may fail, and return all that its caller was told of a failure."""
    with grpc.insecure_channel(system.address("orchestrator")) as channel:
        call = getattr(service(channel), method)
        credentials = (("authorization", f"Bearer {key or system.admin}"),)
        try:
            reply = call(message, metadata=(*credentials, *metadata), timeout=60)
        except grpc.RpcError as error:
            return f"{error.details()} {error.trailing_metadata()}"
        return str(getattr(reply, "error", ""))


def inputs(canaries):
    """Yield requests with a secret in every text that is not an id."""
    put = canaries.put
    schema = schema_of(**{put("property"): {"enum": [put("enum"), "b"], "description": put("description")}})
    state = {"note": json.dumps(put("session value"))}
    yield rpc.OrchestratorServiceStub, "UpdateSession", pb.UpdateSessionRequest(session_id="s", state_json=state)
    documents = [
        collection_pb2.Document(
            source="a", content=f"fox {put('document')}", metadata_json=json.dumps({"note": put("metadata")})
        )
    ]
    yield context_rpc.ContextServiceStub, "Ingest", context_pb.IngestRequest(collection="docs", documents=documents)
    wrong = [collection_pb2.Document(source="b", content=put("wrong document"), metadata_json=put("wrong metadata"))]
    yield context_rpc.ContextServiceStub, "Ingest", context_pb.IngestRequest(collection="docs", documents=wrong)
    policy = policy_pb2.ContextPolicy(collection="docs", max_chunks=1)
    system_prompt = message_pb2.Message(role=message_pb2.ROLE_SYSTEM, content=put("system prompt"))
    rule = contract_pb2.Rule(name="r", expression=f'output != "{put("rule")}"')
    wrong_rule = contract_pb2.Rule(name="w", expression=f'"{put("wrong rule")}" +')
    requests = [
        request(f"fox {put('message')}", CHAT, session_id="s", context=policy, max_tokens=4),
        request(put("structured message"), STRUCTURED, schema=schema, max_tokens=24),
        request(put("vote message"), REDUNDANT, schema=schema, max_tokens=24),
        request(put("message with a rule"), CHAT, rules=[rule], max_tokens=4),
        request(put("message with a wrong rule"), CHAT, rules=[wrong_rule], max_tokens=4),
        request(put("message with a wrong schema"), STRUCTURED, max_tokens=4),
        request(put("message with a grammar"), CHAT, max_tokens=4),
        request(put("message with an intent"), CHAT, semantic_intent=put("intent"), max_tokens=4),
        request(put("message that is too long ") + "word " * 9000, CHAT, max_tokens=4),
        request(put("message of a plan"), PLAN, plan=_plan(put)),
    ]
    requests[0].messages.insert(0, system_prompt)
    requests[0].hints.stop.append(put("stop"))
    requests[5].output.schema_json = json.dumps({"type": put("schema type")})
    requests[6].output.grammar = f'root ::= "{put("grammar")}" ('
    for one in requests:
        yield rpc.OrchestratorServiceStub, "Execute", one


def _plan(put):
    arguments = {"tool": "calculator", "arguments": {"expression": f'"{put("tool argument")}"'}}
    steps = [step("tell", "infer", {"prompt": put("step prompt"), "max_tokens": 4}), step("sum", "tool", arguments)]
    return plan_pb2.ExecutionPlan(steps=steps)


def test_nothing_that_callers_say_or_show_is_told_to_anybody_else(keyed):
    canaries, told = Canaries(), []
    for service, method, message in inputs(canaries):
        told.append(ask(keyed, service, method, message))
    shown = {"wrong key": f"pag_{uuid.uuid4().hex}", "not a key": canaries.put("credentials")}
    told += [
        ask(keyed, rpc.OrchestratorServiceStub, "ListSessions", pb.ListSessionsRequest(), key=key)
        for key in shown.values()
    ]
    with grpc.insecure_channel(keyed.address("orchestrator")) as channel:
        talk = pb.GetSessionRequest(session_id="s")
        metadata = (("authorization", f"Bearer {keyed.admin}"),)
        session = rpc.OrchestratorServiceStub(channel).GetSession(talk, metadata=metadata, timeout=30).session
    assert {"message", "session value"} <= canaries.found_in(session.SerializeToString()), "what was said got in"
    assert "" in told[:3], "a document got in"
    for field in ("request_id", "session_id"):
        odd = request("Go on.", CHAT, max_tokens=1)
        setattr(odd, field, f"{canaries.put('wrong ' + field)} !")
        told.append(ask(keyed, rpc.OrchestratorServiceStub, "Execute", odd))
    own = (("x-own", canaries.put("metadata of the call")), ("x-session-id", canaries.put("wrong id") + " !"))
    told.append(ask(keyed, rpc.OrchestratorServiceStub, "ListSessions", pb.ListSessionsRequest(), metadata=own))
    with grpc.insecure_channel(keyed.address("orchestrator")) as channel, suppress(grpc.RpcError):
        garbage = channel.unary_unary("/pagantic.orchestrator.v1.OrchestratorService/Execute")
        garbage(b"\xff" + canaries.put("garbage").encode(), timeout=10)
    keyed.environment["PAGANTIC_API_KEY"] = keyed.admin
    audit = keyed.run("pagantic", "audit", "list", "--json").stdout
    del keyed.environment["PAGANTIC_API_KEY"]
    assert "OrchestratorService/Execute" in audit
    keyed.run(sys.executable, "-c", "import time; time.sleep(2)")  # spans and metrics are sent now and then

    places = {path.name: path.read_bytes() for path in (keyed.state / "logs").glob("*.log")}
    places |= {f"metrics of {area}": _metrics(port) for area, port in keyed.metrics_ports.items()}
    places |= {"telemetry": b"".join(keyed.received), "audit": audit.encode(), "processes": _processes(keyed)}
    assert b"listening" in places["orchestrator.log"]
    assert b"executions that run" in places["metrics of orchestrator"]
    assert b"Execute" in places["telemetry"]
    assert {name: canaries.found_in(data) for name, data in places.items() if canaries.found_in(data)} == {}

    secrets = [keyed.admin.split("_")[2], *(key.split("_")[-1] for key in shown.values())]
    everything = b"".join(places.values()) + "".join(map(str, told)).encode()
    assert [secret for secret in secrets if secret.encode() in everything] == []


def _metrics(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        return reply.read()


def _processes(system):
    """Return the command lines of the system's processes and of all that they started."""
    ports = {str(port) for port in system.ports.values()}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if ports & set(process.environ().values()):
                found += [" ".join(child.cmdline()) for child in (process, *process.children(recursive=True))]
    assert found
    return "\n".join(found).encode()
