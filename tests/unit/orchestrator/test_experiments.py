"""Experiments: who gets which variant, and what it changes."""

import json
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from services.orchestrator.adapters.operator_files import read_experiments
from services.orchestrator.core.admission.experiments import Experiment, Experiments, Variant, draw, unit_of
from services.orchestrator.core.model.contract import ReplayPolicy
from services.orchestrator.core.model.request import (
    ExperimentVariant,
    Hints,
    Mode,
    Request,
    SystemPrompt,
    TemplateCall,
    VariantChoice,
)
from services.orchestrator.ports.services import ConfiguredTemplate

SESSIONS = [f"acme\0session-{number}" for number in range(1500)]
CONTROL, SHORT = Variant("control", 50), Variant("short", 50, model="other", prompt="brief", temperature=0.5)
PROMPTS = Experiment("prompts", (CONTROL, SHORT), modes=frozenset({Mode.CHAT}), prompt="support")
TEMPLATES = [ConfiguredTemplate("support", ("name",), ()), ConfiguredTemplate("brief", ("name",), ())]
FILE = {
    "name": "prompts",
    "applies_to": {"modes": ["CHAT"], "prompt": "support"},
    "variants": [
        {"name": "control", "share": 50},
        {"name": "short", "share": 50, "model": "other", "prompt": "brief", "temperature": 0.5},
    ],
}

shares = st.lists(st.floats(0.5, 100), min_size=2, max_size=5)
names = st.text("abcdefgh-", min_size=1, max_size=12)


def experiment(values, name="e"):
    return Experiment(name, tuple(Variant(f"v{number}", share) for number, share in enumerate(values)))


def drawn(values, name="e"):
    return [draw(experiment(values, name), unit).name for unit in SESSIONS]


def request(**fields):
    prompt = SystemPrompt(template=TemplateCall("support", (("name", "Ana"),)))
    fields = {"session_id": "s", "prompt": prompt, "hints": Hints(model="small"), "tenant": "acme", **fields}
    return Request("r", fields.pop("mode", Mode.CHAT), (), **fields)


def named(variant, of="prompts"):
    return VariantChoice(ExperimentVariant(of, variant))


@settings(deadline=None, max_examples=15)
@given(shares, names)
def test_sessions_are_divided_as_the_shares_say(values, name):
    counts = Counter(drawn(values, name))
    for number, share in enumerate(values):
        expected = share / sum(values)
        spread = math.sqrt(len(SESSIONS) * expected * (1 - expected))
        assert abs(counts[f"v{number}"] - len(SESSIONS) * expected) < 6 * spread + 1


@settings(deadline=None, max_examples=15)
@given(shares, st.data())
def test_sessions_move_to_the_variant_whose_share_grows_and_no_other(values, data):
    grown = data.draw(st.integers(0, len(values) - 1))
    after = [share * (3 if number == grown else 1) for number, share in enumerate(values)]
    moves = {(one, other) for one, other in zip(drawn(values), drawn(after), strict=True) if one != other}
    assert {other for _, other in moves} <= {f"v{grown}"}


def test_the_shares_alone_count_and_not_their_scale_or_order():
    turned = Experiment("e", tuple(reversed(experiment([90, 10]).variants)))
    assert [draw(turned, unit).name for unit in SESSIONS] == drawn([90, 10])
    assert drawn([9, 1]) == drawn([90, 10])


def test_the_draw_is_the_same_in_each_version():
    assert [draw(experiment([50, 50]), f"acme\0{number}").name for number in range(8)] == [
        "v0",
        "v1",
        "v0",
        "v1",
        "v0",
        "v0",
        "v1",
        "v0",
    ]


def test_a_variant_without_a_share_is_never_drawn():
    assert set(drawn([0, 100])) == {"v1"}


def test_experiments_draw_independently_of_one_another():
    both = Counter(zip(drawn([50, 50], "one"), drawn([50, 50], "two"), strict=True))
    assert all(abs(count - len(SESSIONS) / 4) < 100 for count in both.values())
    assert len(both) == 4


def test_the_session_is_drawn_or_the_request_where_there_is_none():
    assert unit_of(request()) == "acme\0s"
    assert unit_of(request(session_id="")) == "acme\0r"
    assert unit_of(request(tenant="beta")) != unit_of(request())


def test_a_variant_changes_what_it_names_and_nothing_else():
    placed = Experiments((PROMPTS,)).place(request(choice=named("short")))
    assert placed.hints == Hints(model="other", temperature=0.5)
    assert placed.prompt.template == TemplateCall("brief", (("name", "Ana"),))
    assert placed.variant == ExperimentVariant("prompts", "short")
    control = Experiments((PROMPTS,)).place(request(choice=named("control")))
    assert (control.hints, control.prompt) == (request().hints, request().prompt)


@pytest.mark.parametrize(
    ("fields", "conditions"),
    [
        ({"mode": Mode.PLAN}, {}),
        ({"prompt": SystemPrompt("hello")}, {}),
        ({"hints": Hints()}, {"models": frozenset({"small"})}),
        ({"tenant": "beta"}, {"tenants": frozenset({"acme"})}),
        ({"choice": VariantChoice(takes_part=False)}, {}),
        ({"replay": ReplayPolicy("recorded")}, {}),
    ],
)
def test_a_request_that_no_experiment_is_about_stays_as_it_is(fields, conditions):
    asked = request(**fields)
    experiments = Experiments(
        (Experiment("e", (CONTROL, SHORT), frozenset({Mode.CHAT}), prompt="support", **conditions),)
    )
    assert experiments.place(request()).variant is not None
    assert experiments.place(asked) == asked


def test_the_first_experiment_about_a_request_counts():
    second = Experiment("second", (CONTROL, SHORT), models=frozenset({"", "small"}))
    assert Experiments((PROMPTS, second)).place(request()).variant.experiment == "prompts"
    assert Experiments((PROMPTS, second)).place(request(mode=Mode.PLAN, hints=Hints())).variant.experiment == "second"


def test_a_tenant_that_may_not_use_the_model_of_a_variant_takes_no_part():
    experiments = Experiments((PROMPTS,), lambda tenant, model: (tenant, model) != ("acme", "other"))
    assert experiments.place(request()) == request()
    assert experiments.place(request(tenant="beta")).variant is not None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"choice": named("short", "none")}, "variant.experiment 'none' is not known: there is prompts$"),
        ({"choice": named("long")}, "variant.variant 'long' is not known: there is control, short$"),
        ({"choice": named("short"), "mode": Mode.PLAN}, "'prompts' is not about this request: its mode is another"),
        ({"choice": named("short", "hidden"), "tenant": "beta"}, "'hidden' is not known: there is prompts$"),
    ],
)
def test_a_named_variant_that_cannot_be_is_refused(fields, reason):
    hidden = Experiment("hidden", (CONTROL, SHORT), tenants=frozenset({"acme"}))
    declared = (PROMPTS, hidden) if "hidden" in reason else (PROMPTS,)
    with pytest.raises(InvalidRequest, match=reason) as refused:
        Experiments(declared).place(request(**fields))
    assert refused.value.code is ErrorCode.CONFIG_INVALID


def written(tmp_path, *experiments):
    path = tmp_path / "experiments.json"
    path.write_text(json.dumps({"experiments": experiments}))
    return path


def changed(variant, **fields):
    control, short = FILE["variants"]
    both = {"control": control, "short": short}
    both[variant] = {**both[variant], **fields}
    return {**FILE, "variants": list(both.values())}


def test_a_file_gives_its_experiments_and_no_file_none(tmp_path):
    assert read_experiments(written(tmp_path, FILE), TEMPLATES) == (PROMPTS,)
    assert read_experiments(None, TEMPLATES) == ()


@pytest.mark.parametrize(
    ("experiments", "reason"),
    [
        ([], "experiments: List should have at least 1 item"),
        ([{**FILE, "variants": FILE["variants"][:1]}], "experiments.0.variants: List should have at least 2"),
        ([{**FILE, "weight": 1}], "experiments.0.weight: Extra inputs are not permitted"),
        ([{**FILE, "name": "a b"}], "experiments.0.name: String should match"),
        ([FILE, FILE], "experiments: two have the name 'prompts': give each a name of its own"),
        ([changed("short", name="control")], "'prompts': variants: two have the name 'control'"),
        ([changed("short", share=40)], "experiment 'prompts': its shares are 90 in all: make them 100"),
        ([changed("short", share=-1)], "experiments.0.variants.1.share: Input should be greater than or equal to 0"),
        ([changed("short", temperature=3)], "variants.1.temperature: Input should be less than or equal to 2"),
        ([changed("short", prompt="long")], "no prompt template is named 'long': there is brief, other, support"),
        ([{**FILE, "applies_to": {}}], "a variant has a prompt: name the prompt that it replaces in applies_to.prompt"),
        ([changed("short", prompt="other")], r"prompt 'other' has the variables \[\], and 'support' has \['name'\]"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path, experiments, reason):
    with pytest.raises(InvalidRequest, match=reason) as refused:
        read_experiments(written(tmp_path, *experiments), [*TEMPLATES, ConfiguredTemplate("other", (), ())])
    assert str(refused.value).startswith("EXPERIMENTS_FILE ")
