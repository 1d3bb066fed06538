"""What `pagantic` alone does, with and without the package that draws the screen."""

import importlib.util
import sys

import pytest

from gateway import entry


def test_without_the_package_it_says_how_to_get_it_and_prints_the_help(monkeypatch, capfd):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "textual" else find(name))
    monkeypatch.setattr(entry, "_is_terminal", lambda: True)
    monkeypatch.setattr(sys, "argv", ["pagantic"])
    with pytest.raises(SystemExit):
        entry.main()
    shown = capfd.readouterr()
    assert "`pip install 'pagantic[tui]'`" in shown.err
    assert "Usage: " in shown.out + shown.err
