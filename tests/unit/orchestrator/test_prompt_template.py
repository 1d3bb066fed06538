import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import Message, Role
from services.orchestrator.adapters.operator_files import PromptFolder
from services.orchestrator.core.conversation.prompt_template import (
    MAX_PROMPT_CHARS,
    PromptTemplate,
    PromptTemplateError,
)
from services.orchestrator.core.model.request import Mode, Request, SystemPrompt, TemplateCall

FOLDERS_FILES = {"tutor.txt": "Teach {{ subject }}.\n", "brief.md": "Be brief.\n"}


def folder_of(path, files):
    for name, text in files.items():
        path.joinpath(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return PromptFolder(path)


def system_prompt(provider, prompt):
    work = Request(request_id="r", mode=Mode.CHAT, messages=(Message(Role.USER, "hi"),), prompt=prompt)
    return asyncio.run(provider.system_prompt(work, {}))


@given(st.text(), st.text())
def test_values_are_put_in_as_they_are_and_never_read_as_templates(one, other):
    template = PromptTemplate("a {{ one }} b {{other}} c {{ one }}{# nothing #} d")
    assert template.names == {"one", "other"}
    assert template.render({"one": one, "other": other}) == f"a {one} b {other} c {one} d"


def test_a_value_that_looks_like_a_template_stays_text():
    attack = "{{ ''.__class__ }}{% for x in y %}"
    assert PromptTemplate("{{ name }}").render({"name": attack}) == attack


def test_conditions_choose_text_by_what_the_values_are():
    template = PromptTemplate("Hi.\n{% if tone == 'warm' %}\nBe {{ tone }}.\n{% elif tone %}\nHm.\n{% endif %}\nBye.")
    assert template.render({"tone": "warm"}) == "Hi.\nBe warm.\nBye."
    assert template.render({"tone": "cold"}) == "Hi.\nHm.\nBye."
    assert template.render({"tone": ""}) == "Hi.\nBye."


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("one\n{{ name", "line 2"),
        ("{% if a %}", "line 1"),
        ("{% for a in b %}{{ a }}{% endfor %}", "only {{ name }}, {{ session.key }} and {% if name %}"),
        ("a\n{{ name.upper() }}", "line 2: only"),
        ("{{ name.__class__ }}", "only"),
        ("{{ name|upper }}", "only"),
        ("{{ range(9) }}", "only"),
        ("{% include 'x' %}", "only"),
        ("{% set a = 'b' %}", "only"),
        ("{{ name * 9 }}", "only"),
        ("{% if a == 3 %}{% endif %}", "3 must be text"),
        ("{% if a < b %}{% endif %}", "== and != only"),
        ("{% if a in b %}{% endif %}", "== and != only"),
        ("{{ self }}", "named 'self'"),
        ("x" * (MAX_PROMPT_CHARS + 1), "the limit is"),
        ("{{" + "(" * 5000 + "a" + ")" * 5000 + "}}", "nested too deeply"),
    ],
)
def test_what_is_no_bounded_template_is_refused_with_its_line(source, wrong):
    with pytest.raises(PromptTemplateError) as caught:
        PromptTemplate(source)
    assert wrong in str(caught.value)


@pytest.mark.parametrize("name", ["range", "dict", "cycler", "lipsum", "loop"])
def test_names_that_jinja_gives_a_meaning_are_variables_like_others(name):
    template = PromptTemplate("{{ " + name + " }}")
    assert template.render({name: "mine"}) == "mine"
    with pytest.raises(PromptTemplateError, match="is missing"):
        template.render({})


def test_missing_and_unknown_variables_are_named_also_in_a_branch_not_taken():
    template = PromptTemplate("{% if formal %}{{ title }}{% endif %}")
    with pytest.raises(PromptTemplateError, match="variable 'title' is missing"):
        template.render({"formal": ""})
    with pytest.raises(PromptTemplateError, match="'tilte' is not one of its variables: formal, title"):
        template.render({"formal": "", "title": "", "tilte": ""})


def test_a_prompt_that_grows_beyond_the_limit_is_refused():
    template = PromptTemplate("{{ a }}" * 3)
    assert len(template.render({"a": "x" * (MAX_PROMPT_CHARS // 3)})) <= MAX_PROMPT_CHARS
    with pytest.raises(PromptTemplateError, match="more than 1000000 characters"):
        template.render({"a": "x" * (MAX_PROMPT_CHARS // 2)})


def test_a_folder_gives_its_templates_and_what_is_no_template_needs_none(tmp_path):
    provider = folder_of(tmp_path, FOLDERS_FILES | {"notes.rst": "{{", ".hidden.txt": "{{"})
    assert system_prompt(provider, SystemPrompt(template=TemplateCall("brief"))) == "Be brief."
    tutor = TemplateCall("tutor", (("subject", "logic"),))
    assert system_prompt(provider, SystemPrompt(template=tutor)) == "Teach logic."
    assert system_prompt(PromptFolder(None), SystemPrompt("Plain.", (("Style", ("short",)),))) == (
        "Plain.\n\n## Style\n- short"
    )


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (TemplateCall("tutr"), "no template is named 'tutr'; configured: brief, tutor"),
        (TemplateCall("tutor"), "prompt.template 'tutor': variable 'subject' is missing"),
        (TemplateCall("brief", (("subject", "x"),)), "'subject' is not one of its variables: none"),
    ],
)
def test_a_call_that_does_not_fit_is_config_invalid(tmp_path, call, wrong):
    with pytest.raises(InvalidRequest) as caught:
        system_prompt(folder_of(tmp_path, FOLDERS_FILES), SystemPrompt(template=call))
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    assert wrong in str(caught.value)


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ({"bad.txt": "a\n{{ b"}, "template 'bad.txt' cannot be used: line 2"),
        ({"two words.txt": "a"}, "'two words.txt' cannot be used: its name does not match"),
        ({"same.md": "a", "same.txt": "b"}, "'same.txt' cannot be used: another file gives the template 'same' too"),
        ({"binary.md": b"\xff\xfe"}, "'binary.md' cannot be used"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, files, wrong):
    with pytest.raises(InvalidRequest) as caught:
        folder_of(tmp_path, files)
    assert wrong in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidRequest, match=r"the prompt folder .*missing' cannot be read"):
        PromptFolder(tmp_path / "missing")


def test_values_of_the_session_are_put_in_as_they_are():
    template = PromptTemplate(
        '{{ session.name }} {{ session["a:b.c"] }} {{ session.age }} {{ one }} {{ session.name }}'
    )
    assert template.names == {"one"}
    assert template.session_keys == {"name", "a:b.c", "age"}
    state = {"name": '"{{ one }}"', "a:b.c": '{"x":[1]}', "age": "7", "other": "null"}
    assert template.render({"one": "1"}, state) == '{{ one }} {"x":[1]} 7 1 {{ one }}'


def test_a_value_that_the_session_lacks_is_false_in_a_condition_and_an_error_as_text():
    template = PromptTemplate("{% if session.name == 'Ada' %}A{% elif session.name %}B{% else %}C{% endif %}")
    assert [template.render({}, state) for state in ({"name": '"Ada"'}, {"name": '"Bo"'}, {})] == ["A", "B", "C"]
    with pytest.raises(PromptTemplateError, match="the session has no value 'name': set it with UpdateSession"):
        PromptTemplate("{{ session.name }}").render({}, {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ session.name.upper() }}",
        "{{ session.__class__.__mro__ }}",
        "{{ session['a']['b'] }}",
        "{{ session[name] }}",
        "{{ session[0] }}",
        "{{ session() }}",
        "{{ session.name|upper }}",
        "{% for a in session %}{{ a }}{% endfor %}",
    ],
)
def test_nothing_else_of_the_session_can_be_reached(source):
    with pytest.raises(PromptTemplateError, match="only"):
        PromptTemplate(source)


def test_names_of_methods_are_keys_like_any_other():
    template = PromptTemplate("{% if session.items or session.__class__ %}yes{% else %}no{% endif %}")
    assert template.render({}, {}) == "no"
    assert template.render({}, {"items": "1"}) == "yes"


@pytest.mark.parametrize("value", ["false", "null", "0", "0.0", "[]", "{}", '""'])
def test_a_value_of_the_session_that_is_false_as_json_is_false_in_a_condition_and_its_json_as_text(value):
    template = PromptTemplate("{% if session.paid %}yes{% elif not session.paid %}no{% endif %}")
    assert template.render({}, {"paid": value}) == "no"
    assert template.render({}, {"paid": "true"}) == template.render({}, {"paid": '"false"'}) == "yes"
    assert PromptTemplate("<{{ session.paid }}>").render({}, {"paid": value}) == f"<{value.strip(chr(34))}>"
    assert PromptTemplate("{% if session.paid == 'false' %}no{% endif %}").render({}, {"paid": "false"}) == "no"
