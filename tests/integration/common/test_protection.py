"""The memory of a service is closed to the other processes of its user, as those that run hostile input are."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the protection is of Linux")

STARTS = """
import ctypes
from contextlib import asynccontextmanager
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.process.program import run_service
from pagantic_common.settings import ServiceSettings

@asynccontextmanager
async def open_app():
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True)  # PR_GET_DUMPABLE
    raise InvalidRequest("this is enough")
    yield

run_service("tools", ServiceSettings(port=0), open_app)
"""

# Processes without a program of their own, because nobody may be unable to read the interpreter.
READS = """
import ctypes, os, sys
from pagantic_common.rpc.process.protection import protect_memory

def become_nobody():
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after the start of a program

started, ended = os.pipe(), os.pipe()
service = os.fork()
if service == 0:
    become_nobody()
    if sys.argv[1] == "protected":
        protect_memory()
    os.write(started[1], b"x")
    os.read(ended[0], 1)
    os._exit(0)
os.read(started[0], 1)
become_nobody()
for name in sys.argv[2:]:
    path = f"/proc/{service}/{name}"
    try:
        os.listdir(path) if name == "fd" else os.open(path, os.O_RDONLY)
        print(name, "is read")
    except PermissionError:
        print(name, "is refused")
os.write(ended[1], b"x")
os.waitpid(service, 0)
"""


def run(program, *arguments):
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_a_service_is_protected_before_its_app_is_opened():
    done = run(STARTS)
    assert (done.stdout, "this is enough" in done.stderr) == ("0\n", True), done.stderr


def test_no_other_process_of_the_user_reads_the_memory_and_the_environment():
    assert run(READS, "open", "environ").stdout == "environ is read\n"
    refused = run(READS, "protected", "environ", "mem", "fd")
    assert refused.stdout == "environ is refused\nmem is refused\nfd is refused\n", refused.stderr
