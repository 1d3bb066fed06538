"""Lets the user change the options of the next requests, such as the model, system prompt, tools and collection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Checkbox, Input, Select, SelectionList, TextArea
from textual.widgets.selection_list import Selection

from gateway.tui.widgets.plain import Plain, plain
from gateway.tui.work.choices import REASONING, Choices
from gateway.tui.work.offered import Offered
from pagantic_common.domain.text.terminal import plain_text


class OptionsScreen(ModalScreen[Choices | None]):
    """Changes the options. Escape leaves them unchanged."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel"),
        Binding("ctrl+s", "use", "Use"),
    ]

    def __init__(self, choices: Choices, offered: Offered) -> None:
        super().__init__()
        self._choices = choices
        self._offered = offered
        self._problem = Plain(classes="problem")

    def compose(self) -> ComposeResult:
        """Show each option with its current value."""
        chosen = self._choices
        with VerticalScroll(classes="window", can_focus=False) as window:
            window.border_title = "options of the next messages"
            window.border_subtitle = "Tab: next, Ctrl+S: use, Escape: cancel"
            yield from map(Plain, self._offered.problems)
            yield Plain("Model", classes="label")
            yield _menu("model", "the default model", [*self._offered.models, chosen.model], chosen.model)
            yield Plain("System prompt", classes="label")
            yield _field(chosen.system)
            yield Plain("Tools that the model may call; Space chooses", classes="label")
            yield from self._tools()
            yield Checkbox("Ask me before each call", chosen.asks, id="asks", compact=True)
            yield Plain("Collection to answer from", classes="label")
            yield _menu("collection", "none", [*self._offered.collections, chosen.collection], chosen.collection)
            yield Checkbox("Quote the collection in the answer", chosen.cites, id="cites", compact=True)
            yield Plain("Reasoning", classes="label")
            yield _menu("reasoning", REASONING[0], REASONING[1:], chosen.reasoning)
            yield Plain("Temperature, 0 to 2; empty is the default", classes="label")
            temperature = "" if chosen.temperature is None else f"{chosen.temperature:g}"
            yield Input(temperature, id="temperature", compact=True)
            yield Plain("Most tokens of an answer; empty is the default", classes="label")
            yield Input(str(chosen.max_tokens or ""), id="max_tokens", compact=True)
            yield self._problem
            with Horizontal(classes="buttons"):
                yield Button("Use", id="use", variant="primary", compact=True)
                yield Button("Cancel", id="cancel", compact=True)

    def _tools(self) -> ComposeResult:
        tools = self._offered.tools | {name: "" for name in self._choices.tools if name not in self._offered.tools}
        if not tools:
            yield Plain("There are none.", classes="less")
            return
        yield SelectionList[str](
            *(
                Selection(_tool_line(name, described), name, name in self._choices.tools)
                for name, described in tools.items()
            ),
            id="tools",
            compact=True,
        )

    def on_mount(self) -> None:
        """Scroll to the first option."""
        self._problem.display = False
        self.call_after_refresh(self.query_one(".window").scroll_home, animate=False)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Use the new options, or keep the previous options."""
        if event.button.id == "use":
            self.action_use()
        else:
            self.dismiss(None)

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        """Use the options when Enter is pressed in a field."""
        self.action_use()

    def action_cancel(self) -> None:
        """Close the screen and keep the options unchanged."""
        self.dismiss(None)

    def action_use(self) -> None:
        """Use the options, unless an option is invalid."""
        try:
            temperature = _number_in(self._value("temperature"), "temperature", 2.0)
            max_tokens = _number_in(self._value("max_tokens"), "number of tokens", 1e6)
        except ValueError as error:
            self._problem.show(str(error))
            self._problem.display = True
            self._problem.scroll_visible()
            return
        tools: tuple[str, ...] = ()
        for listed in self.query(SelectionList):
            tools = tuple(listed.selected)
        self.dismiss(
            Choices(
                model=self._chosen("model"),
                system=plain_text(self.query_one("#system", TextArea).text).strip(),
                tools=tools,
                collection=self._chosen("collection"),
                cites=self.query_one("#cites", Checkbox).value,
                asks=self.query_one("#asks", Checkbox).value,
                reasoning=self._chosen("reasoning") or REASONING[0],
                temperature=temperature,
                max_tokens=int(max_tokens or 0),
            )
        )

    def _value(self, name: str) -> str:
        return self.query_one(f"#{name}", Input).value.strip()

    def _chosen(self, name: str) -> str:
        return str(self.query_one(f"#{name}", Select).value)


def _menu(name: str, otherwise: str, values: Iterable[str], chosen: str) -> Select[str]:
    """Return a menu whose first entry is the default with an empty value."""
    lines: list[tuple[Any, str]] = [(plain(otherwise), "")]
    lines += [(plain(value), value) for value in dict.fromkeys(values) if value]
    value = chosen if chosen in [value for _, value in lines] else ""
    return Select(lines, allow_blank=False, value=value, id=name, compact=True)


def _field(text: str) -> TextArea:
    made = TextArea(text, show_line_numbers=False, soft_wrap=True, tab_behavior="focus", id="system")
    made.highlight_cursor_line = False
    return made


def _tool_line(name: str, described: str) -> Content:
    summary = " ".join(described.split("\n", 1)[0].split())
    return plain(f"{name}: {summary}" if summary else name)


def _number_in(text: str, what: str, most: float) -> float | None:
    """Return a number from 0 to `most`, or None if the text is empty. Raises ValueError if the text is invalid."""
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"the {what} {text[:20]!r} is not a number") from None
    if not 0 <= number <= most:
        raise ValueError(f"the {what} is {number:g}: it must be from 0 to {most:g}")
    return number
