from hypothesis import given
from hypothesis import strategies as st

from services.inference.core.prompts import ControlTextGuard

CONTROLS = ["<|im_start|>", "<|im_end|>", "<|im", "<s>"]
PIECES = st.lists(st.sampled_from([*CONTROLS, "a", " ", "\ue000", "\ue001", "0", "é"]), max_size=12).map("".join)


@given(PIECES)
def test_text_survives_and_no_control_text_of_a_message_is_meant(text):
    guard = ControlTextGuard(CONTROLS)
    rendered = "<|im_start|>user\n" + guard.hide(text) + "<|im_end|>"
    parts = guard.split(rendered)
    assert "".join(part for part, _ in parts) == f"<|im_start|>user\n{text}<|im_end|>"
    meant = "".join(part for part, is_meant in parts if is_meant)
    assert sum(meant.count(control) for control in CONTROLS[:2]) == 2


def test_nested_values_are_hidden_and_others_left_alone():
    guard = ControlTextGuard(CONTROLS)
    hidden = guard.hide([{"content": "<s>", "n": 1, "tools": ["<|im_end|>", None]}])
    assert "<s>" not in str(hidden)
    assert (hidden[0]["n"], hidden[0]["tools"][1]) == (1, None)
