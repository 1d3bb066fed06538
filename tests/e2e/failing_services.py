"""Failures of services: their settings, their deaths, and scripted neighbours where nothing else can.

Four rows are of scripted services, and say so.
"""

import signal
from contextlib import contextmanager

import grpc

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2
from tests.support.failing_inference import FAILING_TEXT, SLOW_TEXT
from tests.support.killing import wait_until
from tests.support.live_requests import (
    ONCE,
    STORY,
    TELL,
    infer,
    is_action,
    is_text,
    plan,
    request,
    say,
    step,
    structured,
    watch,
)
from tests.support.taxonomy import Rows, run, settled, told_by

ROWS = Rows()


def calling(tool, arguments):
    call = message_pb2.ToolCall(id="c1", name=tool, arguments_json=arguments)
    return lambda world: world.tools.ExecuteTool(tools_service_pb2.ExecuteToolRequest(call=call), timeout=30)


def compute(expression, **fields):
    return step("sum", "tool", {"tool": "calculator", "arguments": {"expression": expression}}, **fields)


# ---- inference ----------------------------------------------------------------------------------------------------


@contextmanager
def full(world):
    """The narrow inference service decodes for as long as this lasts, and takes nothing else."""
    world.mend_narrow()
    constraint = generation_pb2.DecoderConstraint(regex="[a-z ]{4000,5000}")

    def begin():
        stream = infer(world.narrow_inference, constraint=constraint, max_tokens=3000)
        try:
            next(stream)
        except grpc.RpcError:  # an earlier run has only just ended
            return None
        return stream

    stream = wait_until(begin, "something decodes")
    try:
        yield
    finally:
        stream.cancel()


def ask_while_full(world):
    with full(world):
        return told_by(lambda: infer(world.narrow_inference))


@ROWS.add("INFERENCE_OVERLOADED", "inference with QUEUE_CAPACITY 0 and MAX_RUNNING 1, which decodes", ask_while_full)
def overload(world):
    settled(world.narrowed, lambda: say("Hello.", max_tokens=1), world.mend_narrow)
    with full(world):
        return run(world.narrowed, say("Go on."))


@ROWS.add(
    "ORCHESTRATION_DEPENDENCY_UNAVAILABLE", "the only inference service, whose step passes STEP_TIMEOUT_S", is_slow=True
)
def break_the_engine(world):
    settled(world.narrowed, lambda: say("Hello.", max_tokens=1), world.mend_narrow)

    def attempt():
        work, response = run(world.narrowed, say(SLOW_TEXT, max_tokens=8))
        is_full = response.error.code == error_pb2.ERROR_CODE_INFERENCE_OVERLOADED
        return None if is_full else (work, response)  # an earlier run has only just ended

    return wait_until(attempt, "the step that hangs is taken")


def ask_for_a_failing_step(world):
    world.mend_narrow()
    return infer(world.narrow_inference, FAILING_TEXT, max_tokens=8)


@ROWS.add("INFERENCE_ENGINE_ERROR", "an inference service whose engine fails at a text", ask_for_a_failing_step)
def fail_a_step(world):
    settled(world.narrowed, lambda: say("Hello.", max_tokens=1), world.mend_narrow)

    def attempt():
        work, response = run(world.narrowed, say(FAILING_TEXT, max_tokens=8))
        is_full = response.error.code == error_pb2.ERROR_CODE_INFERENCE_OVERLOADED
        return None if is_full else (work, response)  # an earlier run has only just ended

    return wait_until(attempt, "the failing step is taken")


@ROWS.add(
    "INFERENCE_MODEL_UNAVAILABLE",
    "constraint whose INFERENCE_ADDRESS nobody listens on",
    lambda world: world.judge("It is right."),
    is_slow=True,
)
def lose_the_judge(world):
    return run(world.odd, structured(semantic_intent="It is right.", retry=ONCE))


@ROWS.add(
    "INFERENCE_CONTEXT_EXCEEDED", "a prompt over the window", lambda world: infer(world.inference, "word " * 6000)
)
def exceed_the_window(world):
    return run(world.stub, say("word " * 6000))


def ask_who_mumbles(world):
    def answer():
        told = told_by(lambda: world.judge("mumble"))
        return told if told.status != "UNAVAILABLE" else None

    with world.scripted_judge():
        return wait_until(answer, "the judge is asked")


@ROWS.add("INFERENCE_MALFORMED_RESPONSE", "a scripted judge whose verdict is none", ask_who_mumbles)
def judge_by_a_mumble(world):
    with world.scripted_judge():
        return settled(world.odd, lambda: structured(semantic_intent="mumble", retry=ONCE))


# ---- tools --------------------------------------------------------------------------------------------------------


@ROWS.add(
    "TOOL_NOT_FOUND",
    "a name that no tool has",
    lambda world: world.tools.ListTools(tools_service_pb2.ListToolsRequest(names=["hammer"])),
)
def name_no_tool(world):
    return run(world.stub, say("Go on.", tools=["hammer"]))


@ROWS.add("TOOL_INVALID_ARGUMENTS", "a plan's step without its argument", calling("calculator", "{}"))
def leave_an_argument_out(world):
    return run(world.stub, plan(step("sum", "tool", {"tool": "calculator", "arguments": {}})))


@ROWS.add("TOOL_EXECUTION_FAILED", "1 / 0, which must fail again", calling("calculator", '{"expression": "1 / 0"}'))
def divide_by_zero(world):
    return run(world.stub, plan(compute("1 / 0")))


def fail_a_scripted_tool(world, tool):
    with world.scripted_tools(error_pb2.ERROR_CODE_TOOL_EXECUTION_FAILED):
        return settled(world.odd, lambda: plan(step("call", "tool", {"tool": tool, "arguments": {}})))


@ROWS.add("TOOL_EXECUTION_FAILED", "an idempotent tool of a scripted tools service", is_idempotent=True)
def fail_a_steady_tool(world):
    return fail_a_scripted_tool(world, "steady")


@ROWS.add("TOOL_EXECUTION_FAILED", "a tool of a scripted tools service that is not idempotent")
def fail_a_tool_that_runs_once(world):
    return fail_a_scripted_tool(world, "once")


@ROWS.add("TOOL_OUTCOME_UNKNOWN", "a tool of a scripted tools service that is not idempotent")
def lose_a_call(world):
    with world.scripted_tools(error_pb2.ERROR_CODE_TOOL_OUTCOME_UNKNOWN):
        return settled(world.odd, lambda: plan(step("call", "tool", {"tool": "once", "arguments": {}})))


@ROWS.add("TOOL_TIMEOUT", "tools stopped while it is called, a step with a timeout", is_idempotent=True)
def take_too_long(world):
    settled(world.odd, lambda: plan(compute("1 + 1")))
    slow = compute("1 + 1", max_retries=0)
    slow.timeout.FromMilliseconds(500)
    work = plan(TELL, slow, max_tokens=8)
    try:
        return work, watch(world.odd, work, (is_text, lambda: world.odd_tools.send(signal.SIGSTOP))).response
    finally:
        world.odd_tools.send(signal.SIGCONT)


@ROWS.add("TOOL_UNAVAILABLE", "tools killed while it is called", is_idempotent=True, is_slow=True)
def lose_the_tools(world):
    settled(world.odd, lambda: plan(compute("1 + 1")))
    # The tokens after the first one give time to stop the service before its tool is called.
    work = plan(TELL, compute("1 + 1", max_retries=0), max_tokens=200)
    stop = (is_text, lambda: world.odd_tools.send(signal.SIGSTOP))
    kill = (is_action("tool.start"), lambda: world.odd_tools.send(signal.SIGKILL))
    try:
        return work, watch(world.odd, work, stop, kill).response
    finally:
        world.odd_tools.start()


@ROWS.add("TOOL_DENIED", "a plan that uses a tool which its request does not allow")
def use_what_is_denied(world):
    return run(world.stub, plan(compute("1 + 1"), tools=["clock"]))


# ---- neighbours -----------------------------------------------------------------------------------------------------


def ask_without_constraint(world):
    world.odd_constraint.send(signal.SIGKILL)
    try:
        asked = request(STORY, execution_pb2.MODE_PLAN)
        return told_by(lambda: world.odd.CreatePlan(pb.CreatePlanRequest(request=asked), timeout=30))
    finally:
        world.odd_constraint.start()


@ROWS.add("ORCHESTRATION_DEPENDENCY_UNAVAILABLE", "constraint killed", ask_without_constraint)
def lose_constraint(world):
    world.odd_constraint.send(signal.SIGKILL)
    try:
        return run(world.odd, structured(retry=ONCE))
    finally:
        world.odd_constraint.start()


@ROWS.add("ORCHESTRATION_DEPENDENCY_FAILED", "a scripted tools service that fails by itself")
def ask_what_a_broken_service_has(world):
    with world.scripted_tools():
        return run(world.odd, say("What time is it?", tools=["clock"]))


@ROWS.add("VALIDATION_SEMANTIC_FAILED", "constraint whose judge is a scripted inference service")
def displease_the_judge(world):
    with world.scripted_judge():
        return settled(world.odd, lambda: structured(semantic_intent="It is right.", retry=ONCE))
