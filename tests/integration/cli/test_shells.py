"""The installed program completes lines in real shells: with a system, without one, and with a hostile one."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import session_pb2
from tests.support.needs import SHELLS, skip_without
from tests.unit.client.scripted_orchestrator import ScriptedOrchestrator, serving

PROGRAMS = Path(sys.executable).parent
NOBODY = "127.0.0.1:1"
HOSTILE = ("$(touch hacked)", "`touch hacked`", "a b", "-rf", "\x1b[2J", "'x", 'x"; touch hacked')
COMPLETE = """
eval "$SCRIPT"
COMP_WORDS=(pagantic "$@")
COMP_CWORD=$#
_pagantic_completion pagantic
printf '%s\\n' "${COMPREPLY[@]}"
"""


class Orchestrator(ScriptedOrchestrator):
    """Has models and tools too, and sessions with hostile names."""

    async def ListModels(self, _request, _context):
        return pb.ListModelsResponse(models=[message_pb2.ModelInfo(name="tiny:1b"), message_pb2.ModelInfo(name="big")])

    async def ListTools(self, _request, _context):
        definition = message_pb2.ToolDefinition(name="clock")
        return pb.ListToolsResponse(tools=[pb.CallableTool(definition=definition)])

    async def ListSessions(self, _request, _context):
        return pb.ListSessionsResponse(sessions=[session_pb2.Session(session_id=name) for name in ("fine-1", *HOSTILE)])


@pytest.fixture(scope="module")
def address():
    with serving(Orchestrator()) as served:
        yield served


@pytest.fixture
def environment(tmp_path):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PAGANTIC_", "_PAGANTIC"))}
    kept |= {"PATH": f"{PROGRAMS}{os.pathsep}{kept['PATH']}", "HOME": str(tmp_path)}
    return kept | {"PAGANTIC_STATE": str(tmp_path / "state"), "PAGANTIC_ADDRESS": NOBODY}


@pytest.fixture(scope="module")
def script():
    """The script for bash."""
    return subprocess.run(
        [PROGRAMS / "pagantic"],
        env=os.environ | {"_PAGANTIC_COMPLETE": "source_bash"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


@pytest.fixture
def complete(environment, script, tmp_path):
    """Return what bash offers for a line, whose last word is begun; nothing may reach the terminal."""

    def run(*words, **variables):
        done = subprocess.run(
            ["bash", "--norc", "-c", COMPLETE, "bash", *words],  # noqa: S607 - the shell of the machine
            cwd=tmp_path,
            env=environment | {"SCRIPT": script} | variables,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stderr == ""
        return done.stdout.split()

    return run


def until_named(ask):
    """Return the words once there are any: a busy machine may not answer within the time that a completion has."""
    until_s = time.monotonic() + 30
    while not (words := ask()) and time.monotonic() < until_s:
        time.sleep(0.1)
    return words


@pytest.fixture
def name(complete, address):
    """Return the names of the running system that bash offers for a line."""
    return lambda *words: until_named(lambda: complete(*words, PAGANTIC_ADDRESS=address))


def test_bash_completes_commands_options_and_words(complete):
    assert complete("sta") == ["status"]
    assert complete("sessions", "") == ["list", "show", "delete"]
    assert complete("chat", "--tem") == ["--temperature"]
    assert complete("vote", "--strategy", "una") == ["unanimity"]
    assert complete("pull", "qwen2.5-coder", ":", "0") == ["0.5b"]


def test_bash_completes_names_of_the_running_system(name):
    assert name("chat", "--model", "") == ["tiny:1b", "big"]
    assert name("chat", "--model", "tiny", ":") == ["1b"]
    assert name("chat", "--tool", "cl") == ["clock"]
    assert name("timeline", "") == ["r1"]


def test_a_hostile_name_is_not_offered_to_a_shell(name, tmp_path):
    assert name("chat", "--session", "") == ["fine-1"]
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("nobody", [NOBODY, "nonsense", "https://127.0.0.1:1", "127.0.0.1:99999999"])
def test_without_a_system_nothing_is_said(environment, nobody):
    line = {"COMP_WORDS": "pagantic\nchat\n--model\n", "COMP_CWORD": "3", "PAGANTIC_ADDRESS": nobody}
    done = asked(environment, "bash", "", **line)
    assert (done.returncode, done.stdout) == (0, "\n")


def test_tab_completes_in_an_interactive_bash(environment, tmp_path):
    terminal = Terminal(environment, tmp_path)
    try:
        terminal.type('PS1="ready> "; eval "$(pagantic --show-completion)"; echo li""ne\n')
        terminal.wait_for("line")
        terminal.type("pagantic pull qwen2.5-coder:0\t")
        terminal.wait_for("qwen2.5-coder:0.5b ")
        terminal.type("\x15pagantic colle\t")
        terminal.wait_for("pagantic collections ")
    finally:
        terminal.end()


class Terminal:
    """An interactive bash on a terminal."""

    def __init__(self, environment, folder):
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job ignores it
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment | {"TERM": "xterm"})  # noqa: S606, S607
        self.seen = ""

    def type(self, text):
        os.write(self.file, text.encode())

    def wait_for(self, words):
        until_s = time.monotonic() + 30
        while words not in self.seen:
            assert time.monotonic() < until_s, self.seen
            if select.select([self.file], [], [], 0.2)[0]:
                self.seen += os.read(self.file, 65536).decode(errors="replace")
        self.seen = self.seen.partition(words)[2]

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.file)


def asked(environment, shell, line, **variables):
    """Return the output for a shell that asks as the script of typer does."""
    variables = {"_PAGANTIC_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line, **variables}
    done = subprocess.run(
        [PROGRAMS / "pagantic"], env=environment | variables, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    return done


def test_zsh_and_fish_get_words_with_their_help(environment, address):
    shown = asked(environment, "zsh", "pagantic sess").stdout
    assert shown.startswith('_arguments \'*: :(("sessions":"List, show and delete')
    assert asked(environment, "zsh", "pagantic run ").stdout == "_files\n"
    fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert "sessions\tList, show and delete" in asked(environment, "fish", "pagantic sess", **fish).stdout
    assert asked(environment, "fish", "pagantic sess", _TYPER_COMPLETE_FISH_ACTION="is-args").returncode == 0
    assert asked(environment, "fish", "pagantic run ", _TYPER_COMPLETE_FISH_ACTION="is-args").returncode == 1
    named = {"PAGANTIC_ADDRESS": address, **fish}

    def names():
        return asked(environment, "fish", "pagantic chat --model ", **named).stdout.split()

    assert until_named(names) == ["tiny:1b", "big"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_one_that_it_reads(environment, shell):
    if shutil.which(shell) is None:
        skip_without(SHELLS)
    variables = {"_PAGANTIC_COMPLETE": f"source_{shell}"}
    script = subprocess.run(
        [PROGRAMS / "pagantic"], env=environment | variables, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert "_PAGANTIC_COMPLETE" in script
    subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=60)
