"""Forks with a client: `python -m tests.support.forking_program SCENARIO ADDRESS` prints what parent and child see."""

import asyncio
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time

import grpc

from pagantic_common.client import AsyncClient, Client, chat_request
from pagantic_common.domain.errors import PaganticError

LIMIT_S = 20.0


def outcome(work):
    """Return the type and the first words of the error that work raises, or its result."""
    try:
        return work()
    except PaganticError as error:
        return f"{type(error).__name__}: {str(error)[:45]}"


def show(who, seen):
    sys.stdout.write(f"{who}: {seen}\n")
    sys.stdout.flush()


def fork(*works):
    """Print the outcomes of works in a child, which then ends as any program does."""
    pid = os.fork()
    if pid == 0:
        for work in works:
            show("child", outcome(work))
        sys.exit()
    until_s = time.monotonic() + LIMIT_S
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > until_s:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            show("child", "hangs")
            return
        time.sleep(0.02)


def parent(work):
    show("parent", outcome(work))


def say(client):
    return lambda: client.chat("hi").content


def once(client):
    return lambda: asyncio.run(client.chat("hi")).content


def close(client):
    def closing():
        client.close()
        client.close()
        return "closed"

    return closing


def unused(address):
    client = Client(address)
    fork(say(client), say(client), close(client))
    parent(say(client))


def closed_unused(address):
    client = Client(address)
    fork(close(client), say(client))
    parent(say(client))


def used(address):
    client = Client(address)
    parent(say(client))
    fork(say(client), close(client))
    parent(say(client))


def made_by_child(address):
    client = Client(address)
    parent(say(client))
    fork(lambda: Client(address).list_tools(), lambda: asyncio.run(AsyncClient(address).list_tools()))
    parent(say(client))


def freed(address):
    """The child frees the client and its channel; the parent's client works on."""
    clients = [Client(address)]
    parent(say(clients[0]))

    def free():
        clients.clear()
        return f"freed {gc.collect() >= 0}"

    fork(free)
    parent(say(clients[0]))


def streaming(address):
    client = Client(address)
    streams = [client.stream(chat_request("hi"))]
    parent(lambda: next(streams[0]).content_delta.text)

    def leave():
        streams.clear()
        return f"left {gc.collect() >= 0}"

    fork(lambda: next(streams[0]), leave, close(client))
    parent(lambda: next(streams[0]).completed.response.content)


def asyncio_unused(address):
    client = AsyncClient(address)
    fork(once(client))
    parent(once(client))


def asyncio_used(address):
    client = AsyncClient(address)
    parent(once(client))
    fork(once(client), lambda: asyncio.run(client.close()))
    parent(once(client))


def asyncio_same_loop(address):
    client, loop = AsyncClient(address), asyncio.new_event_loop()
    parent(lambda: loop.run_until_complete(client.chat("hi")).content)
    fork(lambda: loop.run_until_complete(client.chat("hi")).content)


def grandchild(address):
    client = Client(address)

    def use_and_fork():
        before = say(client)()
        fork(say(client))
        return f"{before} {say(client)()}"

    fork(use_and_fork)


def threads(address):
    client = Client(address)
    results = []

    def many():
        callers = [threading.Thread(target=lambda: results.append(say(client)())) for _ in range(8)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        return sorted(set(results))

    fork(many)


def encrypted(_address):
    client = Client("https://127.0.0.1:1", timeout_s=3, patience_s=0)
    fork(say(client))


def stuck(address):
    """Other code of the parent used gRPC, which the client cannot know, and a lock of gRPC stays taken in the child."""
    client = Client(address, timeout_s=2)

    def say_where_grpc_is_stuck():
        grpc.aio.insecure_channel = lambda *_arguments, **_options: time.sleep(3600)
        return say(client)()

    fork(say_where_grpc_is_stuck)


CLIENTS = []


def say_in_pool(_number):
    return outcome(say(CLIENTS[0]))


def pool(address):
    CLIENTS.append(Client(address))
    with multiprocessing.get_context("fork").Pool(2) as workers:
        show("child", sorted(set(workers.map(say_in_pool, range(6)))))
    parent(say(CLIENTS[0]))
    with multiprocessing.get_context("fork").Pool(2) as workers:
        show("child", sorted(set(workers.map(say_in_pool, range(6)))))


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
