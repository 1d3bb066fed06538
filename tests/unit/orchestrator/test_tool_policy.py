"""Rules of tools: the closest counts, and the stricter of two policies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import ToolDefinition, ToolSafety
from services.orchestrator.core.tools.policy import (
    MAX_RULES,
    ToolAction,
    ToolPolicies,
    ToolPolicy,
    ToolRule,
    check_rules,
    parse_policy,
)

ACTIONS = st.sampled_from([None, *ToolAction])


def tool(name="send_email", safety=ToolSafety.EXTERNAL):
    return ToolDefinition(name, "", "{}", safety=safety)


@pytest.mark.parametrize(
    ("policy", "action"),
    [
        ("", None),
        ("safety:write=deny", None),
        ("safety:external=ask", ToolAction.ASK),
        ("safety:external=ask, *=deny", ToolAction.DENY),
        ("send_*=ask,*=deny", ToolAction.ASK),
        ("send_email=allow,send_emai*=deny,safety:external=deny", ToolAction.ALLOW),
        ("send_email=deny,send_email=allow", ToolAction.ALLOW),
        ("Send_*=deny", None),
    ],
)
def test_the_closest_rule_counts_and_of_equal_ones_the_last(policy, action):
    assert parse_policy(policy).action_for(tool()) is action


@pytest.mark.parametrize("text", ["send_email", "=ask", "a=maybe", "safety:huge=ask", "a=ask=", "a=ASK"])
def test_a_rule_that_says_nothing_is_refused(text):
    with pytest.raises(ValueError, match="must"):
        parse_policy(text)


def policy_of(action):
    return ToolPolicy(() if action is None else (ToolRule(action, pattern="send_email"),))


@given(ACTIONS, ACTIONS)
def test_a_request_can_only_be_stricter_than_the_deployment(deployment, request):
    strictness = [None, *ToolAction]
    action = ToolPolicies(policy_of(deployment), policy_of(request)).action_for(tool())
    stricter = max(deployment, request, key=strictness.index)
    assert action is (stricter or ToolAction.ALLOW)


@pytest.mark.parametrize("safety", list(ToolSafety))
def test_tools_above_read_are_offered_only_by_name(safety):
    harmless = safety in (ToolSafety.NONE, ToolSafety.READ)
    one = tool(safety=safety)
    assert ToolPolicies().is_offered_unnamed(one) is harmless
    assert ToolPolicies(parse_policy("send_*=ask")).is_offered_unnamed(one)
    assert ToolPolicies(request=parse_policy("send_*=allow")).is_offered_unnamed(one)
    assert not ToolPolicies(parse_policy("send_*=allow"), parse_policy("*=deny")).is_offered_unnamed(one)


def test_rules_of_a_request_are_bounded():
    check_rules([ToolRule(ToolAction.ASK, pattern="a")] * MAX_RULES)
    for rules in (
        [ToolRule(ToolAction.ASK, pattern="a")] * (MAX_RULES + 1),
        [ToolRule(ToolAction.ASK)],
        [ToolRule(ToolAction.ASK, pattern="a", safety=ToolSafety.READ)],
        [ToolRule(ToolAction.ASK, pattern="a" * 65)],
    ):
        with pytest.raises(InvalidRequest):
            check_rules(rules)
