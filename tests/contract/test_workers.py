"""Both kinds of workers do the work; the processes bound it."""

import asyncio
import ctypes
import operator
import os
import platform
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import structlog

from pagantic_common.domain.calls.principal import work_of
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded, Unavailable
from pagantic_common.telemetry.scope import work_scope
from pagantic_common.workers import worker_process
from pagantic_common.workers.process_workers import ProcessWorkers
from pagantic_common.workers.replies import WorkFailed
from pagantic_common.workers.thread_workers import ThreadWorkers
from pagantic_common.workers.worker_process import WorkerLimits
from services.constraint.core.compilation import Source, SourceKind
from services.constraint.core.model import Contract, Limits, Rule
from services.constraint.core.work import EnforceJob, SchemaReport, Work
from tests.support.patience import until_told

WORK = Work(Limits(max_schema_bytes=10_000, max_schema_depth=20, max_output_bytes=10_000_000))


MODULE = {"module": __name__}  # which imports everything that the work needs


def processes(**limits):
    return ProcessWorkers(
        WorkerLimits(**{"processes": 1, "time_s": 20.0, "memory_mib": 256, "queue_capacity": 8, **MODULE, **limits})
    )


@pytest.fixture(params=["threads", "processes"])
async def workers(request):
    async with AsyncExitStack() as stack:
        yield ThreadWorkers() if request.param == "threads" else await stack.enter_async_context(processes())


async def too_complex(workers, work, *arguments):
    with pytest.raises(InvalidRequest) as caught:
        await workers.run(work, *arguments)
    assert caught.value.code is ErrorCode.CONSTRAINT_TOO_COMPLEX
    return str(caught.value)


async def test_work_gives_its_result(workers):
    assert await workers.run(WORK.check_schema, "1", "{}") == SchemaReport()
    long = '["' + "é" * 1_000_000
    assert (await workers.run(WORK.repair_json, long)).text == long + '"]'


async def test_work_raises_its_error_with_its_code(workers):
    with pytest.raises(InvalidRequest, match="nested too deeply") as caught:
        await workers.run(WORK.check_schema, "1", '{"not":' * 30 + "{}" + "}" * 30)
    assert caught.value.code is ErrorCode.CONSTRAINT_TOO_COMPLEX
    with pytest.raises((ZeroDivisionError, WorkFailed), match="by zero"):
        await workers.run(divmod, 1, 0)


async def test_work_of_many_callers_is_all_done(workers):
    assert await asyncio.gather(*(workers.run(abs, -number) for number in range(8))) == list(range(8))


async def test_work_that_takes_too_long_is_ended_and_the_next_is_done():
    async with processes(time_s=0.5) as workers:
        backtracking = (re.match, "(a+)+$", "a" * 40 + "!")
        assert "more than 0.5 s" in await until_told(lambda: too_complex(workers, *backtracking))
        assert await workers.run(abs, -1) == 1


async def test_work_that_was_kept_waiting_is_not_called_too_complex():
    async with processes(time_s=1.0) as workers:
        with pytest.raises(Unavailable, match="too little of the processor"):
            await workers.run(time.sleep, 60)
        process = await workers.run(os.getpid)
        os.kill(process, signal.SIGSTOP)
        with pytest.raises(Unavailable, match="too little of the processor"):
            await workers.run(len, "a" * 1_000_000)
        assert await workers.run(abs, -1) == 1


# Computes for a fifth of 1.5 s, as a process on a busy machine does.
SELDOM = """
import time
for _ in range(15):
    end_s = time.monotonic() + 0.02
    while time.monotonic() < end_s:
        pass
    time.sleep(0.08)
"""


@pytest.mark.timeout(900)
async def test_work_that_got_little_of_the_processor_has_more_time():
    async with processes(time_s=1.0) as workers:
        await until_told(lambda: workers.run(exec, SELDOM))


async def test_a_result_beyond_the_bound_is_refused():
    async with processes() as workers:
        assert "room for its result" in await too_complex(workers, operator.mul, "a", 20_000_000)


async def test_without_processes_callers_are_told_and_a_later_start_is_used(monkeypatch):
    async with processes() as workers:
        process = await workers.run(os.getpid)
        with monkeypatch.context() as patched:
            patched.setattr(worker_process, "MODULE", "no.such.module")
            os.kill(process, signal.SIGKILL)
            for _ in range(3):
                with pytest.raises(Unavailable, match="no worker process can be started") as caught:
                    await workers.run(abs, -1)
                assert caught.value.retry_after_s
        assert await workers.run(abs, -1) == 1


async def test_a_terminal_signal_to_all_leaves_the_work_to_its_end():
    async with processes() as workers:
        process = await workers.run(os.getpid)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(process, number)
        assert await workers.run(os.getpid) == process


async def test_what_waits_when_the_service_stops_is_told():
    async with processes() as workers:
        running = asyncio.create_task(workers.run(time.sleep, 0.2))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(workers.run(abs, -1)) for _ in range(3)]
        await asyncio.sleep(0)
    await running
    for task in waiting:
        with pytest.raises(Unavailable, match="the service stops"):
            await task
    with pytest.raises(Unavailable, match="the service stops"):
        await workers.run(abs, -1)


async def test_a_worker_that_cannot_start_fails_the_service(monkeypatch):
    monkeypatch.setattr(worker_process, "MODULE", "no.such.module")
    with pytest.raises(Unavailable):
        async with processes():
            pass


async def test_work_that_takes_too_much_memory_is_ended():
    async with processes() as workers:
        assert "more than 256 MiB" in await too_complex(workers, bytes, 1 << 30)
        assert await workers.run(abs, -1) == 1


async def test_a_process_that_dies_without_guilt_costs_no_answer():
    async with processes() as workers:
        process = await workers.run(os.getpid)
        os.kill(process, signal.SIGKILL)
        assert await workers.run(abs, -1) == 1
        assert await workers.run(os.getpid) != process


async def test_a_caller_that_gives_up_leaves_the_worker_whole():
    async with processes() as workers:
        task = asyncio.create_task(workers.run(time.sleep, 0.2))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await workers.run(abs, -1) == 1


async def test_the_queue_is_bounded():
    async with processes(queue_capacity=1) as workers:
        tasks = [asyncio.create_task(workers.run(time.sleep, 0.2)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as caught:
            await workers.run(abs, -1)
        assert caught.value.retry_after_s
        await asyncio.gather(*tasks)
        assert await workers.run(abs, -1) == 1


async def test_the_processes_end_with_the_service():
    async with processes() as workers:
        process = await workers.run(os.getpid)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


async def test_a_worker_that_was_killed_for_its_time_is_reaped_and_replaced_at_once():
    async with processes(time_s=0.2) as workers:
        process = await workers.run(os.getpid)
        with pytest.raises((Unavailable, InvalidRequest)):
            await workers.run(time.sleep, 60)
        with pytest.raises(ProcessLookupError):  # a zombie still has its number
            os.kill(process, 0)
        async with asyncio.timeout(20):
            assert await workers.run(os.getpid) != process


def environment_names():
    return list(os.environ)


async def test_a_worker_has_none_of_the_services_environment(monkeypatch):
    monkeypatch.setenv("PAGANTIC_ORCHESTRATOR_JOURNAL_URL", "postgresql://user:password@host/journal")
    async with processes() as workers:
        names = set(await workers.run(environment_names))
    assert names <= {*worker_process.ENVIRONMENT, "LC_CTYPE", "GRPC_VERBOSITY"}  # the last two the worker sets itself


class Chosen:
    """Would run in the service, were replies unpickled there."""

    def __reduce__(self):
        return (os._exit, (1,))


def choose() -> Chosen:
    return Chosen()


async def test_a_worker_can_hand_its_service_nothing_to_run():
    async with processes() as workers:
        with pytest.raises(WorkFailed):
            await workers.run(choose)
        assert await workers.run(abs, -1) == 1


def open_a_socket(_folder):
    socket.socket()


def start_a_program(_folder):
    subprocess.run([sys.executable, "--version"], check=True)


def signal_the_service(_folder):
    os.kill(os.getppid(), 0)


def limit_the_service(_folder):
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))


def slow_the_service(_folder):
    os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)


def move_the_service(_folder):
    os.sched_setaffinity(os.getppid(), {0})


def write_a_new_file(folder):
    (Path(folder) / "new").write_text("x")


def open_a_new_file(folder):
    os.open(Path(folder) / "new", os.O_RDONLY | os.O_CREAT)


def write_a_file(folder):
    os.open(Path(folder) / "kept", os.O_RDWR)


def empty_a_file(folder):
    os.open(Path(folder) / "kept", os.O_RDONLY | os.O_TRUNC)


def truncate_a_file(folder):
    os.truncate(Path(folder) / "kept", 0)


def remove_a_file(folder):
    (Path(folder) / "kept").unlink()


def write_memory_of_the_service(_folder):
    os.open(f"/proc/{os.getppid()}/mem", os.O_RDWR)


REFUSED = [
    *(open_a_socket, start_a_program, signal_the_service, limit_the_service, slow_the_service, move_the_service),
    *(write_a_new_file, open_a_new_file, write_a_file, empty_a_file, truncate_a_file, remove_a_file),
    write_memory_of_the_service,
]


def read_environment_of_the_service(_folder):
    Path(f"/proc/{os.getppid()}/environ").read_bytes()


def read_memory_of_the_service(_folder):
    os.open(f"/proc/{os.getppid()}/mem", os.O_RDONLY)


def list_descriptors_of_the_service(_folder):
    os.listdir(f"/proc/{os.getppid()}/fd")  # noqa: PTH208


def read_a_file_beside(folder):
    (Path(folder).parent / "secret").read_text()


def read_a_file_by_a_link(folder):
    (Path(folder) / "link").read_text()


def list_a_folder_beside(folder):
    os.listdir(Path(folder).parent)  # noqa: PTH208


def list_the_current_folder(_folder):
    os.listdir()  # noqa: PTH208


REFUSED_BY_LANDLOCK = [
    *(read_environment_of_the_service, read_memory_of_the_service, list_descriptors_of_the_service),
    *(read_a_file_beside, read_a_file_by_a_link, list_a_folder_beside, list_the_current_folder),
]


def read_a_file(folder):
    return (Path(folder) / "kept").read_text()


def write_to_stderr():
    os.write(2, b"raw")


def import_late():
    import wave  # noqa: PLC0415

    return wave.__name__


is_filtered = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"}, reason="the filter is of Linux"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder that workers may read, in one that they may not."""
    outer = tmp_path_factory.mktemp("outer")
    (outer / "secret").write_text("secret")
    inner = outer / "inner"
    inner.mkdir()
    (inner / "kept").write_text("whole")
    (inner / "link").symlink_to(outer / "secret")
    return inner


def landlock_version():
    return ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1)


@is_filtered
async def test_a_worker_that_was_taken_over_can_do_little(folder, capfd):
    refused = REFUSED
    if landlock_version() >= 1:
        refused = REFUSED + REFUSED_BY_LANDLOCK
    async with processes(folders=(str(folder),)) as workers:
        for work in refused:
            with pytest.raises(WorkFailed, match="PermissionError"):
                await workers.run(work, str(folder))
        await workers.run(write_to_stderr)
        assert await workers.run(read_a_file, str(folder)) == "whole"
        assert await workers.run(import_late) == "wave"
    assert sorted(path.name for path in folder.iterdir()) == ["kept", "link"]
    assert (folder / "kept").read_text() == "whole"
    assert "raw" not in capfd.readouterr().err


@is_filtered
async def test_a_worker_without_landlock_is_confined_by_the_rest_and_the_log_says_so(monkeypatch, folder):
    module = folder.parent / "worker_without_landlock.py"
    module.write_text(
        "from pagantic_common.workers import confinement, worker\n"
        "confinement._restrict_files = lambda *_: False\n"
        "worker.main()\n"
    )
    monkeypatch.setattr(worker_process, "MODULE", module.stem)
    monkeypatch.setenv("PYTHONPATH", f"{os.environ.get('PYTHONPATH', '')}:{module.parent}")
    worker_process._warn_of_missing_landlock.cache_clear()
    with structlog.testing.capture_logs() as logged:
        async with processes() as workers:
            for work in REFUSED[:-1]:  # the service of this test has not protected its memory
                with pytest.raises(WorkFailed, match="PermissionError"):
                    await workers.run(work, str(folder))
    assert [entry["event"] for entry in logged] == ["workers are confined without Landlock"]


PRODUCTION = [
    "services.constraint.core.work",
    "services.context.adapters.reading.file_work",
    "services.inference.adapters.constraint_trial",
    "services.inference.adapters.prompts.image_decoding",
    "services.orchestrator.adapters.guards.work",
    "services.tools.adapters.builtin.sql",
    "services.tools.core.builtin.json_query",
]


def filters_of_threads(pid):
    """Return the kind of seccomp filter of each thread of a process."""
    statuses = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return [re.search(r"^Seccomp:\s+(\d)", status, re.MULTILINE)[1] for status in statuses]


@is_filtered
@pytest.mark.parametrize("module", PRODUCTION)
async def test_every_thread_of_a_worker_is_confined_those_of_its_imports_too(module):
    async with processes(module=module) as workers:
        assert await workers.run(abs, -1) == 1
        filters = filters_of_threads(workers._workers[0]._process.pid)
    assert len(filters) >= 2
    assert set(filters) == {"2"}


async def test_a_module_that_cannot_be_imported_is_named_with_the_reason():
    with pytest.raises(Unavailable, match=r"cannot import no\.such\.module: ModuleNotFoundError: No module named 'no'"):
        async with processes(module="no.such.module"):
            pass


def flood(size):
    connection = int(sys.argv[1])
    os.write(connection, struct.pack("!i", size))
    while True:
        os.write(connection, bytes(1 << 20))


async def test_a_reply_of_gigabytes_is_refused_by_its_length():
    async with processes() as workers:
        assert "ends its process otherwise" in await too_complex(workers, flood, (1 << 31) - 1)
        assert await workers.run(abs, -1) == 1


RESULTS = [
    (WORK.compile, (Source(SourceKind.SCHEMA, '{"type": "integer", "uniqueItems": true}'),)),
    (WORK.enforce, (EnforceJob('{"a": 1', Contract('{"required": ["b"]}')),)),
    (WORK.enforce, (EnforceJob("é", Contract(), (Rule("r", expression="output == 'x'"),)),)),
    (WORK.check_grammar, ('root ::= "a"\nb ::= "c"', "a")),
    (WORK.check_grammar, ("root ::=", None)),
    (WORK.normalize_enums, ('"LOW"', '{"enum": ["low"]}')),
    (WORK.check_schema, ("[1]", '{"items": {"type": "string"}}')),
    (WORK.compile_rules, ((), "")),
    (WORK.check_rules, ("1", (Rule("r", expression="false"),))),
    (WORK.repair_json, ('{"a": ',)),
]


async def test_every_kind_of_result_arrives_as_it_was_given():
    async with processes() as workers:
        for work, arguments in RESULTS:
            assert await workers.run(work, *arguments) == work(*arguments)


def refuse_in_half_a_character():
    raise InvalidRequest("no field \ud800")


async def test_an_error_that_cannot_be_sent_ends_no_worker():
    async with processes(module="tests.contract.test_workers") as workers:
        before = workers._workers[0]._process.pid
        with pytest.raises(WorkFailed, match="cannot be sent"):
            await workers.run(refuse_in_half_a_character)
        assert workers._workers[0]._process.pid == before


async def for_tenant(tenant, workers, *work):
    with work_scope(principal=work_of(tenant)):
        return await workers.run(*work)


async def test_a_tenant_with_much_work_keeps_nobody_from_a_turn():
    done = []
    async with processes(queue_capacity=8) as workers:
        held = asyncio.create_task(workers.run(time.sleep, 0.3))
        await asyncio.sleep(0)
        tasks = [asyncio.create_task(for_tenant("acme", workers, abs, number)) for number in range(8)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(for_tenant("beta", workers, abs, 100)))
        for task in tasks:
            task.add_done_callback(lambda ended: done.append(ended.exception() or ended.result()))
        await asyncio.wait([held, *tasks])
    assert isinstance(done[0], Overloaded), "the newest of acme's gives its place to beta's"
    assert 100 in done[1:4]
    assert len(done) == 9


async def test_a_caller_that_leaves_a_full_queue_as_another_comes_takes_no_worker_along():
    async with processes(queue_capacity=1) as workers:
        held = asyncio.create_task(workers.run(time.sleep, 0.2))
        await asyncio.sleep(0)
        leaving = asyncio.create_task(for_tenant("acme", workers, abs, -1))
        await asyncio.sleep(0)
        leaving.cancel()
        coming = asyncio.create_task(for_tenant("beta", workers, abs, -2))
        results = await asyncio.gather(leaving, coming, held, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1] == 2 or isinstance(results[1], Overloaded)
        assert await asyncio.wait_for(workers.run(abs, -3), 60) == 3
