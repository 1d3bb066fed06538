import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.calls.principal import LOCAL, Principal, PrincipalKind
from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolChoice, ToolChoiceMode, ToolDefinition
from services.orchestrator.app.effects.tools.calling import hash_arguments
from services.orchestrator.convert.request import fingerprint_of
from services.orchestrator.core.conversation.prompt import (
    Prepared,
    assemble_messages,
    context_message,
    last_user_text,
    with_prepared,
)
from services.orchestrator.core.model.contract import (
    MAX_BACKOFF_S,
    MAX_RETRIES,
    MAX_WAITS_S,
    OutputContract,
    Rule,
    SchemaInPrompt,
)
from services.orchestrator.core.model.decision import Decisions, Question, QuestionKind
from services.orchestrator.core.model.plan import Plan, Proposal, Step, Value, ValueKind
from services.orchestrator.core.model.request import (
    Hints,
    Mode,
    Request,
    RetryPolicy,
    SystemPrompt,
    TemplateCall,
)
from services.orchestrator.core.model.request_check import check_configuration, check_request
from services.orchestrator.core.model.retrieval import Answerability, ContextPolicy, QueryExpansion, Retriever

BM25 = Retriever.BM25
NOT_SCORED = Value(ValueKind.CANDIDATES, proposals=(Proposal("a", score=math.nan),))
USER = Message(Role.USER, "why?")
CONTEXT = Message(Role.SYSTEM, "Relevant context:")


def expanding(**fields):
    return ContextPolicy(BM25, "c", query_expansion=QueryExpansion(**fields))


def weighing(**fields):
    return ContextPolicy(BM25, "c", answerability=Answerability(**fields))


def request(**fields):
    return Request(**{"request_id": "r", "mode": Mode.CHAT, "messages": (USER,), **fields})


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"request_id": "a b"}, "request_id 'a b'"),
        ({"session_id": "ü"}, "session_id"),
        ({"trace_id": "abc"}, "trace_id"),
        ({"messages": ()}, "messages is empty"),
        ({"prompt": SystemPrompt(template=TemplateCall("../secret"))}, "prompt.template.name '../secret'"),
        ({"hints": Hints(max_tokens=-1)}, "max_tokens"),
        ({"hints": Hints(timeout_s=0)}, "timeout"),
        ({"hints": Hints(temperature=2.1)}, "temperature"),
        ({"hints": Hints(options_json="[]")}, "hints.options_json is not a JSON object"),
        ({"hints": Hints(options_json="{")}, "hints.options_json is not JSON"),
        ({"hints": Hints(options_json='{"a":"' + "x" * 16384 + '"}')}, "hints.options_json has 16392 bytes"),
        (
            {"mode": Mode.PLAN, "context": ContextPolicy(BM25, "c", includes_tools=True)},
            "PLAN lays out no context",
        ),
        (
            {"mode": Mode.PLAN, "context": ContextPolicy(BM25, "c", includes_schema=True)},
            "PLAN lays out no context",
        ),
        ({"retry": RetryPolicy(max_retries=11)}, "max_retries is 11"),
        ({"retry": RetryPolicy(backoff_s=61)}, "backoff is 61 s"),
        ({"retry": RetryPolicy(backoff_s=-1)}, "backoff is -1 s"),
        ({"retry": RetryPolicy(backoff_s=math.nan)}, "backoff is nan s"),
        ({"retry": RetryPolicy(max_retries=10, backoff_s=31)}, "comes to 310 s over 10 retries: at most 300 s"),
        ({"retry": RetryPolicy(10, 2, is_exponential=True)}, "comes to 362 s"),
        ({"hints": Hints(timeout_s=9_999_999_999)}, r"timeout is 1e\+10 s: it must be positive and at most"),
        ({"hints": Hints(timeout_s=math.nan)}, "timeout is nan s"),
        ({"hints": Hints(top_p=0.0)}, "top_p is 0: it must be above 0"),
        ({"hints": Hints(top_p=math.nan)}, "top_p is nan"),
        ({"hints": Hints(logit_bias={-1: 1.0})}, "token -1"),
        ({"hints": Hints(logit_bias={1: math.nan})}, "token 1 is nan"),
        ({"context": ContextPolicy(BM25, "c", min_score=math.nan)}, "context.min_score is nan"),
        ({"context": ContextPolicy(BM25, "c", min_score=math.inf)}, "context.min_score is inf"),
        ({"context": ContextPolicy(BM25, "c", max_tokens=-1)}, "must not be negative"),
        ({"context": expanding(queries=6)}, "context.query_expansion.queries is 6: it must be 0 to 5"),
        ({"context": expanding(queries=-1)}, "context.query_expansion.queries is -1"),
        (
            {"context": expanding(has_hypothetical_document=True)},
            "retriever to RETRIEVER_VECTOR or RETRIEVER_HYBRID",
        ),
        ({"context": expanding(model="a\n")}, "context.query_expansion.model must be a model's alias"),
        ({"context": weighing(min_probability=1.1)}, r"answerability.min_probability is 1.1: it must be in \[0, 1\]"),
        ({"context": weighing(min_probability=math.nan)}, "min_probability is nan"),
        ({"context": weighing(slope=math.inf)}, "answerability.slope is inf: it must be between -1000 and 1000"),
        ({"context": weighing(intercept=-1001)}, "answerability.intercept is -1001"),
        ({"context": weighing(model="x" * 201)}, "context.answerability.model must be a model's alias"),
        ({"mode": Mode.PLAN, "context": expanding(queries=1)}, "leave context.query_expansion"),
        ({"mode": Mode.PLAN, "context": weighing()}, "context.answerability unset"),
        ({"mode": Mode.PLAN, "plan": Plan((Step("s", "rerank", input=NOT_SCORED),))}, "step 's': input has a score"),
        ({"rules": (Rule("", "true"),)}, "0 characters"),
        ({"rules": (Rule("r", "true"), Rule("r", "true"))}, "rules has 'r' more than once"),
        ({"rules": (Rule("r"),)}, "rule 'r' is empty"),
        ({"rules": tuple(Rule(f"r{number}", "true") for number in range(101))}, "101 entries"),
    ],
)
def test_a_malformed_envelope_is_refused_naming_the_field(fields, wrong):
    with pytest.raises(InvalidRequest, match=wrong):
        check_request(request(**fields))


SCHEMA = OutputContract(schema_json="{}")
LOOSE = OutputContract(strict_validation=False)
NONE = Hints(tool_choice=ToolChoice(ToolChoiceMode.NONE), max_tool_rounds=3)
INFER = Step("a", "infer")


def in_plan(*steps, **fields):
    return {"mode": Mode.PLAN, "plan": Plan(steps), **fields}


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"retry": RetryPolicy(max_retries=1)}, "nothing is validated: send output, rules or semantic_intent"),
        ({"output": LOOSE}, "output.strict_validation is off, and nothing is validated"),
        ({"output": OutputContract(repair_allowed=False)}, "output.repair_allowed is about a schema"),
        ({"output": OutputContract(decoder_constraint=False)}, "output.decoder_constraint is about a schema"),
        ({"output": OutputContract(schema_in_prompt=SchemaInPrompt.OFF)}, "output.schema_in_prompt is about a schema"),
        (
            {"output": OutputContract(grammar='root ::= "a"', schema_in_prompt=SchemaInPrompt.ON)},
            "output.schema_in_prompt is about a schema",
        ),
        ({"mode": Mode.STRUCTURED, "output": SCHEMA, "hints": Hints(max_tool_rounds=3)}, "name them in tools"),
        ({"hints": NONE}, "no tool can be called: leave hints.max_tool_rounds unset"),
        ({"mode": Mode.STRUCTURED, "output": SCHEMA, "tools": ("clock",), "hints": NONE}, "no tool can be called"),
        (in_plan(replace(INFER, output=LOOSE), Step("b", "infer")), "step 'a': output.strict_validation is off"),
        (in_plan(replace(INFER, output=LOOSE)), "step 'a': output.strict_validation is off"),
        (in_plan(replace(INFER, output=OutputContract(repair_allowed=False))), "step 'a': output.repair_allowed is"),
    ],
)
def test_a_field_with_nothing_to_act_on_is_refused_by_its_name(fields, wrong):
    with pytest.raises(InvalidRequest, match=wrong):
        check_request(request(**fields))


RULED = {"rules": (Rule("r", "true"),)}


@pytest.mark.parametrize(
    "fields",
    [
        {"retry": RetryPolicy(max_retries=1), "output": SCHEMA},
        {"retry": RetryPolicy(max_retries=1), **RULED},
        {"retry": RetryPolicy(max_retries=1), "semantic_intent": "It is polite."},
        {"mode": Mode.PLAN, "retry": RetryPolicy(max_retries=1)},
        {"output": LOOSE, **RULED},
        {"output": OutputContract(grammar='root ::= "a"', strict_validation=False)},
        {
            "output": replace(
                SCHEMA, schema_in_prompt=SchemaInPrompt.OFF, repair_allowed=False, decoder_constraint=False
            )
        },
        {"hints": Hints(max_tool_rounds=3)},
        {"mode": Mode.STRUCTURED, "output": SCHEMA, "tools": ("clock",), "hints": Hints(max_tool_rounds=3)},
        {"tools": ("clock",), "hints": Hints(tool_choice=ToolChoice(ToolChoiceMode.NONE))},
        in_plan(replace(INFER, output=LOOSE), **RULED),
        in_plan(INFER, output=LOOSE, **RULED),
        in_plan(replace(INFER, output=replace(SCHEMA, strict_validation=False)), Step("b", "infer")),
    ],
)
def test_a_field_with_something_to_act_on_is_taken(fields):
    check_request(request(**fields))


def test_structured_needs_a_schema_that_is_json():
    with pytest.raises(InvalidRequest) as missing:
        check_configuration(request(mode=Mode.STRUCTURED))
    assert missing.value.code is ErrorCode.CONFIG_SCHEMA_REQUIRED
    with pytest.raises(InvalidRequest, match="not JSON") as broken:
        check_configuration(request(output=OutputContract(schema_json="{")))
    assert broken.value.code is ErrorCode.CONFIG_INVALID


def test_instruction_sets_are_joined_by_blank_lines():
    prompt = SystemPrompt("Be brief.", (("Style", ("no lists", "no jokes")), ("Scope", ("only France",))))
    assert prompt.render() == "Be brief.\n\n## Style\n- no lists\n- no jokes\n\n## Scope\n- only France"


def test_context_of_the_users_role_goes_into_the_last_user_message_or_the_first():
    history = (Message(Role.USER, "before"), Message(Role.ASSISTANT, "yes"))
    quoted = Message(Role.USER, "quoted")
    prepared = Prepared(system_prompt="Be brief.", history=history, context_message=quoted)
    messages = assemble_messages(request(), prepared, (Message(Role.ASSISTANT, "hm"),))
    assert [message.content for message in messages] == ["Be brief.", "before", "yes", "quoted\n\nwhy?", "hm"]
    early = assemble_messages(request(context=ContextPolicy(BM25, "c", is_after_system=True)), prepared, ())
    assert [message.content for message in early] == ["Be brief.", "quoted\n\nbefore", "yes", "why?"]


def test_a_summary_is_a_part_of_the_first_user_message():
    summary = Message(Role.USER, "summary")
    alone = assemble_messages(request(), Prepared(history=(summary,)), ())
    assert [message.content for message in alone] == ["summary\n\nwhy?"]
    before = (Message(Role.USER, "before"), Message(Role.ASSISTANT, "yes"))
    cut = assemble_messages(request(), Prepared(history=(summary, *before), history_start=4, history_end=6), ())
    assert [message.content for message in cut] == ["summary\n\nbefore", "yes", "why?"]
    of_earlier_version = (Message(Role.SYSTEM, "summary"), *before)
    old = assemble_messages(request(), Prepared(history=of_earlier_version, history_start=4, history_end=6), ())
    assert [message.content for message in old] == ["summary", "before", "yes", "why?"]
    steps = with_prepared(request(), Prepared(history=(summary,)))
    assert [message.content for message in steps.messages] == ["summary\n\nwhy?"]


def test_the_model_does_not_see_messages_that_are_empty_or_removed():
    silent = (Message(Role.USER), Message(Role.ASSISTANT, reasoning="hm"), Message(Role.USER, removed=True))
    history = (*silent, Message(Role.USER, "before"), *silent, Message(Role.ASSISTANT, "yes"))
    work = request(messages=(Message(Role.SYSTEM), *silent[:2], Message(Role.USER, "why?")))
    shown = [Message(Role.USER, "before"), Message(Role.ASSISTANT, "yes"), Message(Role.USER, "why?")]
    assert list(assemble_messages(work, Prepared(history=history, history_end=8), ())) == shown
    assert list(with_prepared(work, Prepared(history=history, history_end=8)).messages[1:]) == shown
    summary = Message(Role.USER, "summary")
    cut = assemble_messages(work, Prepared(history=(summary, *history), history_start=4, history_end=12), ())
    assert [message.content for message in cut] == ["summary\n\nbefore", "yes", "why?"]
    assert last_user_text(work, history) == "why?"
    assert last_user_text(request(messages=(Message(Role.TOOL, "noon", tool_call_id="c", name="clock"),)), history) == (
        "before"
    )


def test_the_result_of_a_call_that_was_removed_is_not_shown():
    asked, called = (
        Message(Role.USER, "what time?"),
        Message(Role.ASSISTANT, tool_calls=(ToolCall("c1", "clock", "{}"),)),
    )
    result = Message(Role.TOOL, "noon", tool_call_id="c1", name="clock")
    whole = assemble_messages(request(), Prepared(history=(asked, called, result), history_end=3), ())
    assert whole == (asked, called, result, Message(Role.USER, "why?"))
    gone = Message(Role.ASSISTANT, removed=True)
    rest = assemble_messages(request(), Prepared(history=(asked, gone, result), history_end=3), ())
    assert rest == (asked, Message(Role.USER, "why?"))
    given = request(messages=(result, Message(Role.USER, "why?")))
    assert assemble_messages(given, Prepared(), ()) == given.messages


def test_an_input_to_judge_is_not_empty():
    decisions = Decisions((Question(QuestionKind.PREDICATE, "It is polite."),))
    work = request(mode=Mode.DECIDE, messages=(Message(Role.USER, "hi"), Message(Role.ASSISTANT)), decisions=decisions)
    with pytest.raises(InvalidRequest, match=r"messages\[1\] \(assistant\) is empty"):
        check_request(work)


def test_two_messages_that_a_caller_gives_stay_two():
    twice = request(messages=(Message(Role.USER, "one"), Message(Role.USER, "two")))
    assert assemble_messages(twice, Prepared(), ()) == twice.messages
    history = (Message(Role.USER, "before"), Message(Role.USER, "and"), Message(Role.ASSISTANT, "yes"))
    messages = assemble_messages(request(), Prepared(history=history, history_end=3), ())
    assert messages == (*history, Message(Role.USER, "why?"))


def test_context_of_the_systems_role_goes_before_the_last_user_message_or_after_the_system_prompt():
    history = (Message(Role.USER, "before"), Message(Role.ASSISTANT, "yes"))
    work = request()
    prepared = Prepared(system_prompt="Be brief.", history=history, context_message=CONTEXT)
    default = assemble_messages(work, prepared, (Message(Role.ASSISTANT, "hm"),))
    assert [message.content for message in default] == ["Be brief.", "before", "yes", "Relevant context:", "why?", "hm"]
    early = request(context=ContextPolicy(BM25, "c", is_after_system=True))
    assert assemble_messages(early, prepared, ())[1] == CONTEXT
    assert last_user_text(work, history) == "why?"


@pytest.mark.parametrize("found", [CONTEXT, None])
def test_the_context_message_tells_of_tools_and_schema_where_the_policy_includes_them(found):
    tools = (ToolDefinition("clock", "Tells the time.", "{}"), ToolDefinition("bell", "", "{}"))
    output = OutputContract(schema_json='{"type":"object"}')
    told = [
        "Tools that can be called:\n\n- clock: Tells the time.\n- bell",
        'JSON Schema of the answer:\n\n{"type":"object"}',
    ]
    for includes in itertools.product([False, True], repeat=2):
        policy = ContextPolicy(BM25, "c", includes_tools=includes[0], includes_schema=includes[1])
        parts = [found.content] if found else []
        parts += [text for text, is_included in zip(told, includes, strict=True) if is_included]
        policy = replace(policy, is_system=True)
        message = context_message(request(context=policy, output=output), found, tools)
        assert (message.content if message else None) == ("\n\n".join(parts) or None)
        assert context_message(request(context=policy), found, ()) == found


def test_a_schema_in_the_context_message_is_not_told_in_the_system_prompt_too():
    output = OutputContract(schema_json='{"type":"object"}', decoder_constraint=False)
    policy = ContextPolicy(BM25, "c", includes_schema=True)
    work = request(output=output, context=policy)
    messages = assemble_messages(work, Prepared(context_message=context_message(work, None, ())), ())
    assert [message.role for message in messages] == [Role.USER]
    assert messages[0].content.startswith("JSON Schema of the answer:")


ANY_OBJECT = OutputContract(schema_json='{"type":"object","$comment":"for tools"}')
SAYS_JSON = [
    {"messages": (Message(Role.USER, "Answer in Json: why?"),)},
    {"messages": (Message(Role.SYSTEM, "Write JSON."), Message(Role.USER, "why?"))},
    {"prompt": SystemPrompt("You answer with json.")},
]


@pytest.mark.parametrize("fields", SAYS_JSON)
def test_a_caller_who_asks_for_json_is_not_followed_by_a_second_instruction(fields):
    prepared = Prepared(system_prompt=fields.get("prompt", SystemPrompt()).render())
    own_words = assemble_messages(request(**fields), prepared, ())
    assert assemble_messages(request(output=ANY_OBJECT, **fields), prepared, ()) == own_words
    shown = replace(ANY_OBJECT, schema_in_prompt=SchemaInPrompt.ON)
    assert '{"type":"object"}' in assemble_messages(request(output=shown, **fields), prepared, ())[0].content
    closed = replace(ANY_OBJECT, schema_json='{"type":"object","required":["a"]}')
    assert '"required"' in assemble_messages(request(output=closed, **fields), prepared, ())[0].content


def test_an_object_that_no_text_asks_for_is_asked_for_in_words_without_a_schema():
    messages = assemble_messages(request(output=ANY_OBJECT), Prepared(), ())
    assert messages == (Message(Role.SYSTEM, "Answer with a JSON object."), Message(Role.USER, "why?"))


def test_a_free_decoder_is_told_the_schema_in_words():
    output = OutputContract(schema_json='{"type":"object"}', decoder_constraint=False)
    assert '{"type":"object"}' in assemble_messages(request(output=output), Prepared(), ())[0].content


def test_the_fingerprint_is_of_the_payload_and_not_of_its_ids():
    first = execution_pb2.SystemRequest(request_id="a", trace_id="t", session_id="s")
    second = execution_pb2.SystemRequest(request_id="b", session_id="s")
    assert fingerprint_of(first) == fingerprint_of(second)
    assert fingerprint_of(first) != fingerprint_of(execution_pb2.SystemRequest(session_id="other"))


def test_the_fingerprint_is_of_the_callers_name_and_not_of_its_key():
    request = execution_pb2.SystemRequest()
    one, replaced, other, token = (
        Principal("acme", subject, kind, frozenset(), key_id=key_id)
        for subject, kind, key_id in (
            ("ci", PrincipalKind.API_KEY, "1"),
            ("ci", PrincipalKind.API_KEY, "2"),
            ("web", PrincipalKind.API_KEY, "3"),
            ("ci", PrincipalKind.TOKEN, ""),
        )
    )
    assert fingerprint_of(request, one.identity) == fingerprint_of(request, replaced.identity)
    assert len({fingerprint_of(request, caller.identity) for caller in (one, other, token, LOCAL)}) == 4


def test_equal_arguments_hash_alike_however_they_are_written():
    assert hash_arguments('{"b":1.0,"a":2}') == hash_arguments('{ "a": 2, "b": 1 }')
    assert hash_arguments("not json") != hash_arguments("{}")


def test_backoff_is_fixed_or_doubles():
    assert [RetryPolicy(backoff_s=1).wait_s(n, 0.5) for n in (0, 1, 2, 3)] == [0, 1, 1, 1]
    exponential = RetryPolicy(backoff_s=1, is_exponential=True)
    assert [exponential.wait_s(n, 0.0) for n in (0, 1, 2, 3)] == [0, 1, 2, 4]
    assert [exponential.wait_s(n, 0.5) for n in (1, 2, 3)] == [0.75, 1.5, 3]


@given(st.integers(0, MAX_RETRIES), st.floats(0, MAX_BACKOFF_S), st.booleans(), st.floats(0, 1))
def test_an_accepted_policy_never_waits_longer_than_the_limits(max_retries, backoff_s, is_exponential, draw):
    policy = RetryPolicy(max_retries, backoff_s, is_exponential)
    waits = [policy.wait_s(number, draw) for number in range(1, max_retries + 1)]
    assert max(waits, default=0) <= MAX_BACKOFF_S
    assert policy.objection or sum(waits) <= MAX_WAITS_S
