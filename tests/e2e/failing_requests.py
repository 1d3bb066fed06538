"""Failures that requests bring about by themselves."""

import json

from pagantic.common.v1 import message_pb2
from pagantic.constraint.v1 import constraint_service_pb2, contract_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.orchestrator.v1 import approval_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from tests.support.killing import wait_until
from tests.support.live_requests import (
    CHECK,
    COLLECTION,
    LONG_TALE,
    MANY,
    ONCE,
    STORY,
    TALE,
    TELL,
    chat,
    infer,
    is_text,
    plan,
    redundant,
    request,
    say,
    schema_of,
    step,
    structured,
    watch,
)
from tests.support.taxonomy import Rows, run, told_by
from tests.support.taxonomy_world import FORBIDDEN, FORBIDDEN_WORD

ROWS = Rows()

COLOR = schema_of(c={"enum": ["red"]})
PINK = '{"c": "pink"}'
DEEP = "[" * 100 + "]" * 100


def saying(text, schema, **fields):
    """Return a structured request whose grammar leaves the model nothing to say but this text."""
    output = contract_pb2.OutputContract(grammar=f"root ::= {json.dumps(text)}", schema_json=json.dumps(schema))
    output.repair_allowed = False
    return request("Go on.", execution_pb2.MODE_STRUCTURED, output=output, retry=ONCE, **fields)


def with_grammar(grammar, **fields):
    return say("Go on.", output=contract_pb2.OutputContract(grammar=grammar), **fields)


def compiling(**source):
    return lambda world: world.constraint.Compile(constraint_service_pb2.CompileRequest(**source), timeout=30)


def enforcing(output, rules=(), **contract):
    ask = constraint_service_pb2.EnforceRequest(
        output=output, contract=contract_pb2.OutputContract(**contract), rules=rules
    )
    return lambda world: world.constraint.Enforce(ask, timeout=30)


def planning(work):
    return lambda world: world.stub.CreatePlan(pb.CreatePlanRequest(request=work), timeout=30)


# ---- constraint and validation ------------------------------------------------------------------------------------


@ROWS.add("CONSTRAINT_GRAMMAR_INVALID", "a grammar without a root rule", compiling(grammar='rootRule ::= "a"'))
def give_no_root(world):
    return run(world.stub, with_grammar('rootRule ::= "a"'))


LETTERS = "root ::= [a-z]{90}"


@ROWS.add(
    "CONSTRAINT_GRAMMAR_REJECTED",
    "a plan that checks a given text",
    enforcing("abc", grammar=LETTERS),
    is_retryable=False,
)
def check_a_text(world):
    work = plan(CHECK)
    work.output.grammar = LETTERS
    return run(world.stub, work)


@ROWS.add("INFERENCE_OUTPUT_TRUNCATED", "an answer that a stop text ends before the grammar does")
def stop_the_answer(world):
    work = with_grammar(LETTERS)
    work.hints.stop.extend("abcdefghijklmnop")
    return run(world.stub, work)


@ROWS.add("INFERENCE_OUTPUT_TRUNCATED", "an answer that max_tokens cuts off")
def cut_the_answer(world):
    return run(world.stub, with_grammar(LETTERS, max_tokens=2))


@ROWS.add("ORCHESTRATION_STEP_TIMEOUT", "a plan's step whose timeout passes while it decodes")
def give_a_step_no_time(world):
    slow = step("tell", "infer", {"prompt": STORY}, timeout={"nanos": 200_000_000}, retry=ONCE)
    return run(world.stub, plan(slow, schema=LONG_TALE, max_tokens=MANY))


@ROWS.add("CONSTRAINT_SCHEMA_INVALID", "a grammar of {}", enforcing("{}", schema_json=json.dumps(TALE)))
def say_too_little(world):
    return run(world.stub, saying("{}", TALE))


@ROWS.add("CONSTRAINT_JSON_INVALID", "a grammar of no JSON, repair off", enforcing("", schema_json=json.dumps(TALE)))
def say_no_json(world):
    return run(world.stub, saying("It is red.", COLOR))


@ROWS.add("CONSTRAINT_ENUM_UNRECOGNIZED", "a grammar of another color", enforcing(PINK, schema_json=json.dumps(COLOR)))
def say_pink(world):
    return run(world.stub, saying(PINK, COLOR))


@ROWS.add("CONSTRAINT_TOO_COMPLEX", "a schema of 100 levels", compiling(schema_json=f'{{"enum": {DEEP}}}'))
def nest_deeply(world):
    return run(world.stub, redundant(schema={"enum": json.loads(DEEP)}))


NEVER = contract_pb2.Rule(name="never", expression="false")


@ROWS.add("VALIDATION_RULE_FAILED", "a rule that is false", enforcing("{}", rules=[NEVER]))
def break_a_rule(world):
    return run(world.stub, structured(rules=[NEVER], retry=ONCE))


# ---- orchestration ------------------------------------------------------------------------------------------------

TWICE = plan(TELL, TELL)
MISMATCH = plan(TELL, step("order", "rerank"))


@ROWS.add("ORCHESTRATION_STEP_MISMATCH", "text for a step that reranks chunks", planning(MISMATCH))
def pair_wrongly(world):
    return run(world.stub, plan(*MISMATCH.plan.steps))


@ROWS.add("ORCHESTRATION_ITERATION_LIMIT", "a required call in the only round")
def go_round(world):
    work = chat()
    work.hints.max_tool_rounds = 1
    return run(world.stub, work)


@ROWS.add("ORCHESTRATION_NO_CONSENSUS", "unanimity on a number drawn at temperature 2")
def disagree(world):
    work = redundant(schema=schema_of(number={"type": "integer", "minimum": 100_000, "maximum": 999_999_999}))
    work.hints.temperature = 2
    work.voting.n = 5
    work.voting.strategy = execution_pb2.VOTING_STRATEGY_UNANIMITY
    return run(world.stub, work)


@ROWS.add("ORCHESTRATION_NOT_ANSWERABLE", "a question without a word of the collection")
def find_nothing(world):
    weighed = policy_pb2.Answerability(min_probability=0.5)
    context = policy_pb2.ContextPolicy(collection=COLLECTION, answerability=weighed)
    return run(world.stub, say("Zyxwv?", context=context))


@ROWS.add("ORCHESTRATION_PLAN_REJECTED", "two steps of one name", planning(TWICE))
def name_twice(world):
    return run(world.stub, plan(*TWICE.plan.steps))


def parked_session(world):
    """Return a session whose turn waits for an approval, once its execution is parked."""
    asks = approval_pb2.ToolRule(tool="calculator", action=approval_pb2.TOOL_ACTION_ASK)
    work = chat(tool_rules=[asks], background=True)
    events = world.stub.ExecuteStream(work, timeout=100)
    next(events)
    events.cancel()
    named = pb.GetExecutionRequest(request_id=work.request_id)
    wait_until(lambda: world.stub.GetExecution(named).execution.HasField("wakes_at"), "the turn is parked")
    return work.session_id


def append_to_a_parked_session(world):
    told = message_pb2.Message(role=message_pb2.ROLE_USER, content="And now?")
    change = pb.UpdateSessionRequest(session_id=parked_session(world), appended_messages=[told])
    return world.stub.UpdateSession(change, timeout=30)


@ROWS.add("ORCHESTRATION_TURN_WAITING", "a turn of a session whose turn is parked", append_to_a_parked_session)
def speak_to_a_parked_session(world):
    return run(world.stub, say("Go on.", session_id=parked_session(world)))


# ---- configuration and cancellation -------------------------------------------------------------------------------


@ROWS.add("CONFIG_NO_ENGINE", "a model that nobody serves", lambda world: infer(world.inference, model="none"))
def ask_nobody(world):
    work = say("Go on.")
    work.hints.model = "none"
    return run(world.stub, work)


@ROWS.add("CONFIG_SCHEMA_REQUIRED", "no schema")
def give_no_schema(world):
    return run(world.stub, request("Go on.", execution_pb2.MODE_REDUNDANT))


@ROWS.add("AUTH_POLICY", "a collection that a policy denies")
def retrieve_what_is_denied(world):
    return run(world.odd, say("Go on.", context=policy_pb2.ContextPolicy(collection=FORBIDDEN)))


@ROWS.add("GUARD_BLOCKED", "a word that a guard keeps out")
def say_what_is_blocked(world):
    return run(world.narrowed, say(f"Tell of the {FORBIDDEN_WORD}."))


@ROWS.add("CONFIG_GRAMMAR_NOT_FOUND", "a name that no grammar has", compiling(grammar_name="none"))
def name_no_grammar(world):
    return run(world.stub, say("Go on.", output=contract_pb2.OutputContract(grammar_name="none")))


@ROWS.add("CONFIG_INVALID", "a schema of no JSON Schema type", compiling(schema_json='{"type": "banana"}'))
def give_a_wrong_schema(world):
    return run(world.stub, structured(schema={"type": "banana"}))


def ask_who_thinks_long(world):
    def answer():
        told = told_by(lambda: world.judge("think for long"))
        return told if told.status != "UNAVAILABLE" else None

    with world.scripted_judge():
        return wait_until(answer, "the judge is asked")


@ROWS.add("CANCELLED_TIMEOUT", "hints.timeout while decoding; a judge past JUDGE_TIMEOUT_S", ask_who_thinks_long)
def run_out_of_time(world):
    return run(world.stub, plan(TELL, schema=LONG_TALE, max_tokens=MANY, timeout_s=1))


def ask_and_cancel(world):
    call = infer(world.inference, STORY, max_tokens=MANY)
    next(call)
    call.cancel()
    return told_by(lambda: call)


@ROWS.add("CANCELLED_SIGNAL", "CancelExecution while decoding; a caller that cancels", ask_and_cancel)
def cancel(world):
    work = say(STORY, max_tokens=MANY)
    cancelling = pb.CancelExecutionRequest(request_id=work.request_id)
    return work, watch(world.stub, work, (is_text, lambda: world.stub.CancelExecution(cancelling))).response
