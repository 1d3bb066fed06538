"""The templates are the telling parts of those that come with the models named."""

import pytest

from services.inference.core.answers.dialect import MEANT_CONTROL_TEXTS, VERBATIM, Dialect, ToolFormat, dialect_of

QWEN25 = (
    'return a json object within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>}'
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
)
QWEN3 = (
    "<tool_call>{%- set content = content.split('</think>')[-1] %}{{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' }}"
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n"
    "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
    "        {{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}\n{%- endif %}"
)
QWQ = (
    "<tool_call>{{ message.content.split('</think>')[-1] }}"
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n<think>\\n' }}\n{%- endif %}\n"
)
DEEPSEEK_R1 = (
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{% if add_generation_prompt and not ns.is_tool %}{{'<Assistant><think>\\n'}}{% endif %}"
)
LLAMA31 = "{{- '<|start_header_id|>system' }}{{- \"<|python_tag|>\" + tool_call.name }}{%- if add_generation_prompt %}"
LLAMA32 = '{{- \'<|start_header_id|>\' + role }} Respond in the format {"name": function name, "parameters": {}}'
MISTRAL = "{{- '[TOOL_CALLS] [' }}{{- '[AVAILABLE_TOOLS]' }}"
MAGISTRAL = "{{- '[THINK]' + thinking + '[/THINK]' }}[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}"
PLAIN_TEXT_END = "{% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}"
CHATML = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant\\n' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "tool_format", "opening", "is_in_reasoning"),
    [
        (QWEN25, ToolFormat.HERMES, "<think>", False),
        (QWEN3, ToolFormat.HERMES, "<think>", False),
        (QWQ, ToolFormat.HERMES, "<think>", True),
        (DEEPSEEK_R1, ToolFormat.GENERIC, "<think>", True),
        (LLAMA31, ToolFormat.LLAMA3, "<think>", False),
        (LLAMA32, ToolFormat.LLAMA3, "<think>", False),
        (MISTRAL, ToolFormat.MISTRAL, "<think>", False),
        (MAGISTRAL, ToolFormat.MISTRAL, "[THINK]", False),
        (PLAIN_TEXT_END, ToolFormat.GENERIC, "<think>", True),
        (CHATML, ToolFormat.GENERIC, "<think>", False),
        ("", ToolFormat.GENERIC, "<think>", False),
    ],
)
def test_the_template_tells_the_dialect(template, tool_format, opening, is_in_reasoning):
    dialect = dialect_of(template)
    assert (dialect.tool_format, dialect.reasoning[0], dialect.is_in_reasoning) == (
        tool_format,
        opening,
        is_in_reasoning,
    )


def test_the_rendered_prompt_settles_whether_reasoning_is_open():
    undecided = "{% if add_generation_prompt %}{{ '<think>' if thinking else '</think>' }}{% endif %}"
    dialect = dialect_of(undecided)
    assert dialect.after("Assistant: <think>\n").is_in_reasoning
    assert not dialect.after("Assistant: </think>").is_in_reasoning
    assert not Dialect(is_in_reasoning=True).after("Assistant: <think>\n\n</think>\n\n").is_in_reasoning
    assert not VERBATIM.after("<think>").is_in_reasoning


def test_every_marker_that_may_be_a_control_token_is_meant():
    assert {
        *("<tool_call>", "</tool_call>", "<think>", "</think>", "[THINK]", "[/THINK]"),
        *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"),
    } <= MEANT_CONTROL_TEXTS
    assert not {"{", "[", "```", "]"} & MEANT_CONTROL_TEXTS
    for tool_format in ToolFormat:
        assert set(Dialect(tool_format).openings_in_text) <= MEANT_CONTROL_TEXTS
