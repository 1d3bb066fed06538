"""A server that speaks the protocol and misbehaves: `python -m tests.support.hostile_mcp_server HABIT`.

The habit `lists:b129/g10` lists 129 broken tools on a page, and 10 good ones on the next; KINDS has the letters. Its
tools say how many pages were asked for.
"""

import base64
import json
import os
import re
import signal
import sys
import time

SCHEMA = {"type": "object", "properties": {}}
# Every result of version 2026-07-28 needs these fields.
CACHE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


KINDS = {
    "g": lambda number: {"name": f"good{number}", "inputSchema": SCHEMA},
    "b": lambda number: {"name": f"broken{number}"},
    "n": lambda _: {"inputSchema": SCHEMA},
    "s": lambda number: {"name": f"schema{number}", "inputSchema": {"type": "object", "minProperties": "one"}},
    "x": lambda _: {"name": "x", "inputSchema": SCHEMA},
    "y": lambda _: {"name": "x"},
    "h": lambda number: {"name": f"heavy{number}", "inputSchema": SCHEMA, "icons": [{}] * 200_000},
    "p": lambda number: {"name": f"places{number}", "inputSchema": SCHEMA, "icons": [{}] * 1000},
    "i": lambda number: {"name": f"infinite{number}", "inputSchema": {"type": "object", "default": float("inf")}},
}


def pages_of(habit):
    pages, number = [], 0
    for written in habit.removeprefix("lists:").split("/"):
        page = []
        for kind, count in re.findall(r"([a-z])(\d+)", written):
            for _ in range(int(count)):
                number += 1
                page.append(KINDS[kind](number))
        pages.append(page)
    return pages


def write(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say(message):
    write(json.dumps(message))


def answer(request, result):
    say({"jsonrpc": "2.0", "id": request["id"], "result": result})


class PagedList:
    """Answers with the pages of a habit, and counts how many were asked for."""

    def __init__(self, habit):
        self._pages = pages_of(habit)
        self._asked = 0

    def answer(self, request):
        if request["method"] == "tools/call":
            answer(request, {"content": [{"type": "text", "text": str(self._asked)}]})
            return
        self._asked += 1
        at = int(request.get("params", {}).get("cursor", 0))
        further = {"nextCursor": str(at + 1)} if at + 1 < len(self._pages) else {}
        text = json.dumps({"tools": self._pages[at], **further}).replace("Infinity", "1e999")
        write(f'{{"jsonrpc": "2.0", "id": {json.dumps(request["id"])}, "result": {text}}}')


def tools_of(habit):
    if habit == "wrong-tools":
        return [
            {"name": "fine", "description": "Works.", "inputSchema": SCHEMA},
            {"name": "a.b", "inputSchema": SCHEMA},
            {"name": "a/b", "inputSchema": SCHEMA},
            {"name": "unreadable", "inputSchema": {"type": "object", "properties": {"a": {"type": "nothing"}}}},
            {"name": "remote", "inputSchema": {"type": "object", "$ref": "http://127.0.0.1:1/schema.json"}},
            {"name": "fat", "description": "x" * 40_000, "inputSchema": SCHEMA},
            {"name": "n" * 100, "inputSchema": SCHEMA},
        ]
    if habit in ("malformed-tools", "malformed-tools-2026"):
        return [
            {"name": "text", "inputSchema": {"type": "string"}},
            {"name": "fine", "inputSchema": SCHEMA},
            {"description": "Has no name.", "inputSchema": SCHEMA},
            {"name": "annotated", "inputSchema": SCHEMA, "annotations": ["read"]},
        ]
    if habit == "no-list":
        return {"fine": SCHEMA}
    if habit == "many-tools":
        return [{"name": f"tool{number}", "inputSchema": SCHEMA} for number in range(300)]
    return [{"name": "call", "inputSchema": SCHEMA}, {"name": "start", "inputSchema": SCHEMA}]


def result_of(habit):
    if habit == "pictures":
        picture = {"type": "image", "data": base64.b64encode(os.urandom(60_000)).decode(), "mimeType": "image/png"}
        return {"content": [picture], "structuredContent": {"content": [picture]}}
    return {"content": [{"type": "text", "text": "called"}], "resultType": "complete"}


def call(habit, request):
    if habit == "endless-line":
        while True:
            sys.stdout.write("x" * 65_536)
    if habit == "hangs":
        return
    if habit == "mute":
        os.close(1)
        time.sleep(60)
    if habit == "logs-much":
        for number in range(1500):
            write(f"line {number}")
    if habit == "floods":
        while True:
            say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 500}})
    if habit == "deaf":
        answer(request, {"content": []})
        time.sleep(60)
    answer(request, result_of(habit))


def handle(habit, paged, request):
    match request.get("method"):
        case "server/discover" if habit.endswith("-2026"):
            answer(
                request,
                {
                    "supportedVersions": ["2026-07-28"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": habit, "version": "1"},
                    **CACHE,
                },
            )
        case "initialize":
            answer(
                request,
                {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": habit, "version": "1"},
                },
            )
        case "tools/list" | "tools/call" if habit.startswith("lists:"):
            paged.answer(request)
        case "tools/list" if habit == "pages":
            answer(request, {"tools": tools_of(habit), "nextCursor": "again"})
        case "tools/list":
            answer(request, {"tools": tools_of(habit), **CACHE})
        case "tools/call":
            call(habit, request)
        case _ if "id" in request and "method" in request:
            error = {"code": -32601, "message": "no such method"}
            say({"jsonrpc": "2.0", "id": request["id"], "error": error})


LOG_LINES = {
    "logs-lines": b"INFO processing a request\n",
    "logs-json": b'{"level": "info", "msg": "processing a request"}\n',
    "logs-bytes": b"\x1b[32mINFO\x1b[0m \xff\xfe\x00 caf\xe9\r\n",
    "logs-empty": b"\n\n",
}


def log(habit):
    """Write a server's log to standard output, where it does not belong."""
    sys.stdout.buffer.write(LOG_LINES.get(habit, b""))
    sys.stdout.buffer.flush()


def main():
    habit = sys.argv[1]
    if habit == "garbage":
        for number in range(1000):
            write(f"line {number}")
    if habit == "stays":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    paged = PagedList(habit)
    for line in sys.stdin:
        log(habit)
        handle(habit, paged, json.loads(line))
    if habit == "stays":
        time.sleep(60)


if __name__ == "__main__":
    main()
