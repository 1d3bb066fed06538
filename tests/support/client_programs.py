"""The example clients, each built from a copy of its sources in the cache folder, beside a copy of the proto files."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support import needs

ROOT = Path(__file__).parents[2]
CLIENTS = Path("deploy") / "examples" / "clients"
WHOLE = os.environ.get("PAGANTIC_TEST_CLIENTS") == "all"
BUILD_S = 900
KEPT_S = 86400
SAMPLE = {
    "test_chat_streams_what_the_system_answered",
    "test_error_decodes_a_status_and_the_error_of_a_response",
    "test_an_answer_survives_two_lost_connections",
    "test_a_hostile_answer_is_shown_as_text",
    "test_a_refusal_says_when_to_come_back",
}
_MADE = ("bin", "gen", "target", "node_modules", "dist", "pagantic", "__pycache__", ".venv", "Cargo.lock")


@dataclass(frozen=True)
class Language:
    """How a client is built in its folder and started.

    `programs` must be on PATH. A client that `is_quick` to build is built by every run of the tests.
    """

    name: str
    programs: tuple[str, ...]
    build: tuple[tuple[str, ...], ...]
    start: tuple[str, ...]
    is_quick: bool = False

    def command(self):
        """Return the command that starts the client, built if need be; skips the test where it cannot be had."""
        if not all(map(shutil.which, self.programs)):
            needs.skip_without(needs.NODE if self.name == "typescript" else needs.toolchain(self.name))
        folder = self._folder()
        if not (folder / "built").is_file():
            if not (WHOLE or self.is_quick):
                needs.skip_without(needs.built_client(self.name))
            self._build(folder)
        (folder / "built").touch()  # It is in use.
        here = folder / CLIENTS / self.name
        first, *rest = (str(here / part) if (here / part).is_file() else part for part in self.start)
        return [shutil.which(first) or first, *rest]

    def _folder(self):
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagantic" / "clients"
        digest = hashlib.sha256()
        for root in (ROOT / "proto" / "pagantic", ROOT / CLIENTS / self.name):
            for path in sorted(root.rglob("*")):
                if path.is_file() and not set(_MADE).intersection(path.relative_to(root).parts):
                    digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
        return cache / self.name / digest.hexdigest()[:16]

    def _build(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (folder / "built").is_file():  # by another run of the tests
                return
            for part in (Path("proto") / "pagantic", CLIENTS / self.name):
                shutil.rmtree(folder / part, ignore_errors=True)
                ignored = shutil.ignore_patterns(*_MADE) if part.parts[0] == "deploy" else None
                shutil.copytree(ROOT / part, folder / part, ignore=ignored)
            for command in self.build:
                self._run(command, folder)
            (folder / "built").touch()
        for other in folder.parent.glob("*/built"):  # Those of other sources, which no run has used for a while.
            if time.time() - other.stat().st_mtime > KEPT_S:
                shutil.rmtree(other.parent, ignore_errors=True)

    def _run(self, command, folder):
        environment = os.environ | {
            "PROTOC": f"{sys.executable} -m grpc_tools.protoc",
            "CARGO_TARGET_DIR": str(folder.parent / "target"),  # keeps the libraries of other versions
        }
        done = subprocess.run(
            [shutil.which(command[0]) or command[0], *command[1:]],
            cwd=folder / CLIENTS / self.name,
            env=environment,
            check=False,
            timeout=BUILD_S,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode and command == _NPM_CI and not WHOLE:  # There may be no network.
            needs.skip_without(needs.built_client(self.name))
        assert done.returncode == 0, f"{command} gave {done.returncode}\n{done.stdout[-4000:]}"


def skip_unless_sampled(test):
    """Skip a test of a client for want of time: all run for Python, and a sample for the other languages."""
    language = test.callspec.params["program"]
    if not WHOLE and language.name != "python" and test.originalname not in SAMPLE:
        needs.skip_without(needs.TIME_FOR_CLIENTS)


_PROTOS = sorted(str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto" / "pagantic").rglob("*.proto"))
_PROTOC = ("-m", "grpc_tools.protoc", "-I", "../../../../proto", "--python_out=.", "--grpc_python_out=.")
_NPM_CI = ("npm", "ci", "--ignore-scripts", "--no-fund", "--no-audit")
LANGUAGES = (
    Language(
        "python",
        (),
        ((sys.executable, *_PROTOC, *_PROTOS),),
        (sys.executable, "client.py"),
        is_quick=True,
    ),
    Language(
        "typescript",
        ("node", "npm"),
        (_NPM_CI, ("npm", "run", "build")),
        ("node", "dist/client.js"),
        is_quick=True,
    ),
    Language("go", ("go",), (("go", "generate"), ("go", "build", "-o", "bin/client", ".")), ("bin/client",)),
    Language(
        "java", ("java", "javac", "mvn"), (("mvn", "-q", "-B", "package"),), ("java", "-jar", "target/client.jar")
    ),
    Language(
        "rust",
        ("cargo",),
        (("cargo", "build"), ("sh", "-c", 'mkdir -p bin && cp "$CARGO_TARGET_DIR/debug/client" bin/')),
        ("bin/client",),
    ),
)
