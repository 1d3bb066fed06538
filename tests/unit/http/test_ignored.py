"""Every field that is sent and has no effect is named in the answer, at every depth of every form."""

import pytest

from tests.support.http_effects import bodies, changed_at, effect_of, legal_values, path_of, places_in

CHATS, RESPONSES, COUNTS = "/v1/chat/completions", "/v1/responses", "/v1/responses/input_tokens"
MESSAGE_COUNTS = "/v1/messages/count_tokens"
TOOLS_COUNT = "Tools count unless the choice is none."
PROMPT_COUNTS = "The prompt and the tools of the request count, and its other fields do not."
NOT_ALLOWED = "A function that tool_choice does not allow is not offered, whatever its name."
NOT_GIVEN = "An allowed function that is not among the tools permits nothing, whatever its name."
# Fields of which some legal values have equal effects that no answer names.
EXCEPTIONS = {
    (CHATS, "response_format.json_schema.name"): "A label for the caller, which promises no effect.",
    (CHATS, "tools[].function"): NOT_ALLOWED,
    (CHATS, "tools[].function.name"): NOT_ALLOWED,
    (CHATS, "tool_choice.allowed_tools.tools[].function"): NOT_GIVEN,
    (CHATS, "tool_choice.allowed_tools.tools[].function.name"): NOT_GIVEN,
    (RESPONSES, "tools[].name"): NOT_ALLOWED,
    (COUNTS, "tool_choice"): TOOLS_COUNT,
    (COUNTS, "pagantic"): PROMPT_COUNTS,
    (MESSAGE_COUNTS, "tool_choice"): TOOLS_COUNT,
    (MESSAGE_COUNTS, "tool_choice.type"): TOOLS_COUNT,
    (MESSAGE_COUNTS, "pagantic"): PROMPT_COUNTS,
}


async def twins():
    """Yield the fields that have the same effect for two legal values, and are not named as ignored.

    Roles are left out: the documentation says which of them stand for each other.
    """
    for path, body in bodies():
        for keys, form in places_in(path, body):
            for name, field in type(form).model_fields.items():
                key = field.alias or name
                for values in () if key == "role" else legal_values(name, field):
                    effects = [await effect_of(path, changed_at(body, keys, key, value)) for value in values]
                    legal = [effect for effect in effects if not effect.is_refused]
                    is_named = any(_names(effect.ignored, path_of(keys, key)) for effect in legal)
                    if not is_named and len({(effect.calls, effect.answer) for effect in legal}) < len(legal):
                        yield path, path_of(keys, key)


def _names(ignored, path):
    """Return whether a field, a value of it, a field around it or in it, or the tool around it is named."""
    return any(
        path == name
        or path.startswith((f"{name}.", f"{name}[]"))
        or name.startswith((f"{path}.", f"{path}[].", f"{path}="))
        or ("type=" in name and path.startswith(name.partition("type=")[0]))
        for name in ignored
    )


async def test_every_field_has_an_effect_or_is_named():
    assert {place async for place in twins()} == EXCEPTIONS.keys()


@pytest.mark.parametrize(("path", "body"), bodies())
async def test_an_unknown_field_of_any_object_is_named(path, body):
    without = await effect_of(path, body)
    for keys, _ in places_in(path, body):
        effect = await effect_of(path, changed_at(body, keys, "unknown_zz", "a"))
        is_named = _names(effect.ignored, path_of(keys, "unknown_zz"))
        assert is_named or effect.answer != without.answer, (path, keys, effect)
