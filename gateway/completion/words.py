"""What may follow the words of a command line. Pure: knows no shell and asks no system.

The commands are described as JSON values, as they are read from the user's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypedDict

Item = tuple[str, str]  # a word and its help


class Value(TypedDict):
    """What a parameter takes: some of these words, or names that a running system knows."""

    words: list[str]
    source: str


class Option(TypedDict):
    """An option. A flag takes no value."""

    names: list[str]
    help: str
    is_flag: bool
    is_repeatable: bool
    value: Value


class Argument(TypedDict):
    """A positional argument; `is_last` takes all further words."""

    is_last: bool
    value: Value


class Command(TypedDict):
    """A command or a group of them. `default` is the command of a group that may be left out."""

    help: str
    default: str
    commands: dict[str, Command]
    options: list[Option]
    arguments: list[Argument]


_UNKNOWN = Command(help="", default="", commands={}, options=[], arguments=[])


class Following(NamedTuple):
    """What may follow. `prefix` is the part of the last word that every completion keeps."""

    items: list[Item]
    source: str = ""
    prefix: str = ""


def following(root: Command, words: Sequence[str], last: str) -> Following:
    """Return what may follow `words`, the whole ones after the program's name, where `last` was begun."""
    place = _Place(root)
    for word in words:
        place.take(word)
    if place.waiting is not None:
        return _of_value(place.waiting["value"])
    if place.takes_options and last.startswith("-"):
        return _of_option(place, last)
    if place.command["commands"]:
        items = [(name, command["help"]) for name, command in place.command["commands"].items()]
        return Following(items)
    argument = _argument_at(place.command, place.position)
    if argument is None:
        return Following([])
    return _of_value(argument["value"])


class _Place:
    """Where a line stands after some of its words.

    Attributes:
        waiting: The option whose value comes next.
        position: How many arguments the command has.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        self.waiting: Option | None = None
        self.takes_options = True
        self.position = 0
        self._given: set[str] = set()

    def take(self, word: str) -> None:
        """Pass a word."""
        if self.waiting is not None:
            self.waiting = None
        elif self.takes_options and word == "--":
            self.takes_options = False
        elif self.takes_options and word.startswith("-") and word != "-":
            self._take_option(word)
        else:
            self._take_argument(word)

    def options(self) -> Iterator[Option]:
        """Yield the options that may follow."""
        for option in _options_of(self.command):
            if option["is_repeatable"] or not self._given.intersection(option["names"]):
                yield option

    def _take_option(self, word: str) -> None:
        name, sign, _value = word.partition("=")
        self._given.add(name)
        option = _find_option(self.command, name)
        if option is not None and not option["is_flag"] and not sign:
            self.waiting = option

    def _take_argument(self, word: str) -> None:
        commands = self.command["commands"]
        if word in commands:
            self._enter(word)
        elif self.command["default"] in commands:
            self._enter(self.command["default"])
            self.position = 1
        elif commands:
            self.command = _UNKNOWN
        else:
            self.position += 1

    def _enter(self, name: str) -> None:
        self.command = self.command["commands"][name]
        self.position = 0
        self._given = set()


def _of_option(place: _Place, last: str) -> Following:
    name, sign, _value = last.partition("=")
    if not sign:
        return Following([(name, option["help"]) for option in place.options() for name in option["names"]])
    option = _find_option(place.command, name)
    if option is None:
        return Following([])
    return _of_value(option["value"])._replace(prefix=f"{name}=")


def _of_value(value: Value) -> Following:
    return Following([(word, "") for word in value["words"]], value["source"])


def _options_of(command: Command) -> Iterator[Option]:
    yield from command["options"]
    if command["default"] in command["commands"]:
        yield from command["commands"][command["default"]]["options"]


def _find_option(command: Command, name: str) -> Option | None:
    return next((option for option in _options_of(command) if name in option["names"]), None)


def _argument_at(command: Command, position: int) -> Argument | None:
    arguments = command["arguments"]
    if position < len(arguments):
        return arguments[position]
    if arguments and arguments[-1]["is_last"]:
        return arguments[-1]
    return None
