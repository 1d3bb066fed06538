"""Processes beside a running system, with settings that bring about what it does not show by itself."""

import contextlib
import json
import signal
import threading
from concurrent import futures

import grpc

from deploy.local.probing import probe_health
from pagantic.constraint.v1 import constraint_service_pb2, constraint_service_pb2_grpc
from pagantic.inference.v1 import generation_pb2, inference_service_pb2, inference_service_pb2_grpc
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc
from pagantic.tools.v1 import tools_service_pb2, tools_service_pb2_grpc
from tests.support.live_requests import ingest
from tests.support.ports import free_ports
from tests.support.service_process import ServiceProcess


class ScriptedJudge(inference_service_pb2_grpc.InferenceServiceServicer):
    """Finds every output invalid. About the intent `think for long` it thinks longer than anybody waits; about `mumble`
    it gives no verdict.
    """

    def __init__(self):
        self.left = threading.Event()

    def Infer(self, request, context):
        if "think for long" in str(request.chat.messages[-1].content):
            context.add_callback(self.left.set)
            self.left.wait(60)
            return
        is_mumbling = "mumble" in str(request.chat.messages[-1].content)
        verdict = "{" if is_mumbling else '{"reason": "no", "valid": false, "confidence": 0.9}'
        delta = inference_service_pb2.CandidateDelta(content=verdict)
        yield inference_service_pb2.InferResponse(delta=delta)
        end = inference_service_pb2.CandidateEnd(finish_reason=generation_pb2.FINISH_REASON_STOP)
        yield inference_service_pb2.InferResponse(candidate_end=end)
        yield inference_service_pb2.InferResponse(completed=inference_service_pb2.InferenceCompleted())


class ScriptedTools(tools_service_pb2_grpc.ToolServiceServicer):
    """Has `steady`, which is idempotent, and `once`, which is not; each call fails as `code` says.

    Without a code it fails whatever it is asked, with a status of its own.
    """

    def __init__(self, code):
        self.code = code

    def ListTools(self, request, context):
        if self.code is None:
            context.abort(grpc.StatusCode.INTERNAL, "the list of tools is lost")
        reply = tools_service_pb2.ListToolsResponse()
        for name in sorted(set(request.names) or {"steady", "once"}):
            tool = reply.tools.add(available=True)
            tool.definition.name = name
            tool.definition.parameters_json = "{}"
            tool.definition.idempotent = name == "steady"
        return reply

    def ExecuteTool(self, request, context):
        reply = tools_service_pb2.ExecuteToolResponse(attempts=1)
        reply.result.is_error = True
        reply.result.content = "it does not work"
        reply.error.code = self.code
        reply.error.retryable = request.call.name == "steady"
        return reply


@contextlib.contextmanager
def serving(add, servicer, port):
    """Serve a scripted neighbour on the port where a real one would be."""
    server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    add(servicer, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


FORBIDDEN = "forbidden"  # a collection that the policy of `odd` denies
# The guards of `narrow_orchestrator` block requests with this word.
FORBIDDEN_WORD = "unobtainium"


class World:
    """The running system, and beside it processes with settings that provoke what it does not show.

    `narrow` is an inference service that takes one request at a time and gives up a step after five seconds, whose
    engine fails at one text and hangs at another; `odd_*` are an orchestrator with a policy and a constraint service
    whose judge is at `judge_port`, and tools at `odd_tools.port`.
    """

    def __init__(self, system, folder, stack):
        self.system = system
        self._stack = stack
        ingest(system.address("context"))
        (self.judge_port,) = free_ports(1)

        def process(area, name, **settings):
            made = ServiceProcess(area, system, folder / f"{name}.log", **settings)
            stack.callback(made.close)
            return made

        def orchestrator(name, **settings):
            return process("orchestrator", name, journal_url=f"sqlite:///{folder / name}.sqlite3", **settings)

        self.narrow = process(
            "inference",
            "narrow",
            module="tests.support.failing_inference",
            queue_capacity=0,
            max_running=1,
            step_timeout_s=5,
        )
        guards = folder / "guards.json"
        words = {"plugin": "topics", "stages": ["input"], "options": {"words": [FORBIDDEN_WORD]}}
        guards.write_text(json.dumps({"guards": [words], "workers": 1}))
        self.narrow_orchestrator = orchestrator(
            "narrow-orchestrator", inference_address=self.narrow.address, busy_patience_s=0, guards_file=guards
        )
        judge = f"127.0.0.1:{self.judge_port}"
        policies = folder / "policies.cedar"
        policies.write_text(f'permit(principal, action, resource) unless {{ resource == Collection::"{FORBIDDEN}" }};')
        self.odd_constraint = process("constraint", "constraint", inference_address=judge, judge_timeout_s=1)
        self.odd_tools = process("tools", "tools")
        self.odd_orchestrator = orchestrator(
            "odd-orchestrator",
            constraint_address=self.odd_constraint.address,
            tools_address=self.odd_tools.address,
            planner="model",
            policy_file=policies,
        )
        started = (self.narrow, self.narrow_orchestrator, self.odd_constraint, self.odd_tools, self.odd_orchestrator)
        with futures.ThreadPoolExecutor(len(started)) as pool:
            list(pool.map(ServiceProcess.start, started))
        self.stub = self._orchestrator(system.address("orchestrator"))
        self.odd = self._orchestrator(self.odd_orchestrator.address)
        self.narrowed = self._orchestrator(self.narrow_orchestrator.address)
        self.inference = self._inference(system.address("inference"))
        self.narrow_inference = self._inference(self.narrow.address)
        self.constraint = self._constraint(system.address("constraint"))
        self.judging = self._constraint(self.odd_constraint.address)
        self.tools = tools_service_pb2_grpc.ToolServiceStub(self._channel(system.address("tools")))

    def mend_narrow(self):
        """Start the narrow inference service again when its engine is broken."""
        if probe_health(self.narrow.address) != "SERVING":
            self.narrow.send(signal.SIGKILL)
            self.narrow.start()

    def judge(self, intent):
        """Ask the constraint service whose judge is at `judge_port`."""
        ask = constraint_service_pb2.ValidateSemanticsRequest(output="{}", intent=intent)
        return self.judging.ValidateSemantics(ask, timeout=30)

    @contextlib.contextmanager
    def scripted_judge(self):
        add = inference_service_pb2_grpc.add_InferenceServiceServicer_to_server
        judge = ScriptedJudge()
        with serving(add, judge, self.judge_port):
            yield
            judge.left.set()

    @contextlib.contextmanager
    def scripted_tools(self, code=None):
        self.odd_tools.send(signal.SIGKILL)
        with serving(
            tools_service_pb2_grpc.add_ToolServiceServicer_to_server, ScriptedTools(code), self.odd_tools.port
        ):
            yield
        self.odd_tools.start()

    def _channel(self, address):
        return self._stack.enter_context(grpc.insecure_channel(address))

    def _orchestrator(self, address):
        return orchestrator_service_pb2_grpc.OrchestratorServiceStub(self._channel(address))

    def _inference(self, address):
        return inference_service_pb2_grpc.InferenceServiceStub(self._channel(address))

    def _constraint(self, address):
        return constraint_service_pb2_grpc.ConstraintServiceStub(self._channel(address))
