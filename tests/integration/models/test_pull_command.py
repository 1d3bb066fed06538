"""The commands as users run them: killed and repeated, twice at once, with exit codes and next steps, as JSON."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.pulling.pull import Pull
from gateway.pulling.references import source_of
from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.models.folder import ModelFolder
from pagantic_common.models.settings import ModelSettings
from tests.support.killing import wait_until
from tests.support.sample_models import model_bytes, sha256_hex

ROOT = Path(__file__).parents[3]
NAME = "owner/repo/tiny.gguf"
REFERENCE = f"hf:{NAME}"
CONTENT = model_bytes()
NOBODY = "127.0.0.1:1"


@pytest.fixture
def served(hub):
    hub.files[NAME] = CONTENT
    return hub


@pytest.fixture
def start(hub):
    """Start the command against the local hub; what has not ended with the test is killed."""
    started = []

    def run(*arguments, **variables):
        environment = {**os.environ, "PAGANTIC_MODELS_HUB_ENDPOINT": hub.url, "PAGANTIC_INFERENCE_ADDRESS": NOBODY}
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli.main", *arguments],
            cwd=ROOT,
            env={**environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture
def run(start):
    """Run the command to its end; returns its exit code, stdout and stderr."""

    def wait(*arguments, **variables):
        process = start(*arguments, **variables)
        stdout, stderr = process.communicate(timeout=60)
        return process.returncode, stdout, stderr

    return wait


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_pull_that_is_stopped_continues_where_it_was(served, start, run, folder, number):
    served.stops_at = 40_000
    pulling = start("pull", REFERENCE)
    wait_until(lambda: folder.unfinished_bytes() > 0, "some bytes are written")
    pulling.send_signal(number)
    _, stderr = pulling.communicate(timeout=60)
    assert pulling.returncode == {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130}[number]
    assert ("the same command continues" in stderr) is (number == signal.SIGINT)
    assert folder.models() == []
    kept = folder.unfinished_bytes()
    served.stops_at = None
    assert run("pull", REFERENCE)[0] == 0
    assert folder.file_of("tiny").read_bytes() == CONTENT
    assert served.sent_bytes() == [0, kept]


def test_an_unfinished_pull_is_deleted_once_it_has_ended(served, start, run, folder):
    served.stops_at = 40_000
    pulling = start("pull", REFERENCE)
    wait_until(lambda: folder.unfinished_bytes() > 0, "some bytes are written")
    assert run("rm", "--unfinished", "--json") == (0, '{"freed_bytes": 0}\n', "")
    pulling.kill()
    pulling.communicate()
    code, stdout, _ = run("rm", "--unfinished")
    assert code == 0
    assert re.fullmatch(r"deleted \d+ kB of unfinished pulls\n", stdout)
    assert folder.unfinished_bytes() == 0


def test_two_pulls_at_once_bring_a_model_once(served, start, folder):
    served.stops_at = 40_000
    both = [start("pull", REFERENCE, "--json")]
    wait_until(lambda: folder.unfinished_bytes() > 0, "the first one writes")
    both.append(start("pull", REFERENCE, "--json"))
    wait_until(lambda: sum(method == "HEAD" for method, _, _ in served.asked) == 2, "the second one has asked, too")
    served.go_on.set()
    told = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert sorted(one["is_new"] for one in told) == [False, True]
    assert {one["sha256"] for one in told} == {sha256_hex(CONTENT)}
    assert served.sent_bytes() == [0]


@pytest.mark.usefixtures("served")
def test_as_json_nothing_else_is_printed(run, folder):
    code, stdout, stderr = run("pull", REFERENCE, "--as", "mine", "--json")
    assert (code, stderr) == (0, "")
    assert json.loads(stdout)["file"] == str(folder.file_of("mine"))
    code, stdout, _ = run("models", "--json")
    assert code == 0
    (model,) = json.loads(stdout)["models"]
    assert json.loads(stdout)["system"] is None
    assert (model["name"], model["served"], model["size_bytes"]) == ("mine", False, len(CONTENT))
    assert model["pulled"]["sha256"] == sha256_hex(CONTENT)
    assert run("rm", "mine")[0] == 0
    assert folder.models() == []


@pytest.mark.parametrize(
    ("arguments", "code", "said", "next_step"),
    [
        (["pull", "smollm2"], 3, "CONFIG_MODEL_NOT_FOUND: .*did you mean smollm2:135m", "pagantic models --catalog"),
        (["pull", "hf:no/such/m.gguf"], 3, "CONFIG_MODEL_NOT_FOUND", "pagantic models --catalog"),
        (["pull", "https://elsewhere.example/m.gguf", "--sha256", "0" * 64], 3, "CONFIG_SOURCE_DENIED", "MODELS_HOSTS"),
        (["pull", REFERENCE, "--as", "../x"], 3, "CONFIG_INVALID: '../x' cannot be the name", "the message names"),
        (["pull", REFERENCE, "--sha256", "0"], 2, "USAGE: --sha256 '0'", ""),
        (["pull", "./nofile.gguf"], 3, "no such file", "of a file: check its path"),
        (["pull", __file__, "--as", "x"], 3, "CONFIG_MODEL_CORRUPT", "of a file: get it anew"),
        (["rm"], 2, "USAGE: give the name", ""),
        (["rm", "tiny", "--unfinished"], 2, "USAGE: give the name", ""),
        (["rm", "nothing"], 3, "CONFIG_MODEL_NOT_FOUND", "pagantic models"),
        (["models"], 7, "cannot be reached", "pagantic up"),
    ],
)
def test_a_failure_has_a_code_and_a_next_step(run, arguments, code, said, next_step):
    exit_code, stdout, stderr = run(*arguments)
    assert (exit_code, stdout) == (code, "")
    assert re.search(said, stderr)
    assert next_step in stderr


def test_a_hub_that_is_away_is_exit_code_7(run):
    code, _, stderr = run("pull", REFERENCE, PAGANTIC_MODELS_HUB_ENDPOINT="http://127.0.0.1:1")
    assert code == 7
    assert "CONFIG_SOURCE_UNAVAILABLE" in stderr
    assert "pull again, which continues" in stderr


def test_a_gated_model_is_exit_code_3_with_what_helps(served, run):
    served.gated.add("owner/repo")
    code, _, stderr = run("pull", REFERENCE)
    assert code == 3
    assert "CONFIG_SOURCE_DENIED" in stderr
    assert "HF_TOKEN" in stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_becomes_full_keeps_what_has_arrived(served, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(small)], check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here ({os.strerror(errno.EPERM)})")
    try:
        folder = ModelFolder(small)
        source = source_of(REFERENCE, ModelSettings(hub_endpoint=served.url), 5.0)
        options = {"wait_s": 5, "on_progress": lambda *_: None, "retry_s": 0}
        with pytest.raises(PreconditionFailed, match="is full") as refused:
            Pull(source, folder, free_bytes=lambda _path: 2**40, **options).run()
        assert refused.value.code is ErrorCode.CONFIG_NO_SPACE
        kept = folder.unfinished_bytes()
        assert 0 < kept < len(CONTENT)
        subprocess.run(["/bin/mount", "-o", "remount,size=1m", str(small)], check=True)
        Pull(source, folder, free_bytes=lambda _path: 2**40, **options).run()
        assert folder.file_of("tiny").read_bytes() == CONTENT
        assert served.sent_bytes() == [0, kept]
    finally:
        subprocess.run(["/bin/umount", str(small)], check=True)
