"""A model hub on this machine: the endpoints of files that huggingface_hub asks, and servers that misbehave."""

import hashlib
import re
import ssl
import threading
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "5" * 40


class ModelHub:
    """Serves files by `owner/repo/path`, first a redirect to storage, as a hub does.

    Attributes:
        files: Contents by name.
        hashes: SHA-256 that the hub states, where it is not the content's.
        sizes: Sizes that the hub states, where they are not the content's.
        cuts: Bytes after which each next answer of the storage breaks off.
        gated: Names that are refused without a token; `token` is the right one.
        has_ranges: Whether the storage takes ranges.
        states_hash: Whether the hub states the SHA-256 of files.
        stops_at: Bytes after which an answer of the storage waits until `go_on` is set; None for no wait.
        is_silent: Whether the storage sends nothing after its headers.
        asked: Method, path and range of every request.
        tokens: The Authorization headers that the storage has seen.
    """

    def __init__(self):
        self.files = {}
        self.hashes = {}
        self.sizes = {}
        self.cuts = []
        self.gated = set()
        self.token = "right"  # noqa: S105 - of a hub that lives for a test
        self.has_ranges = True
        self.states_hash = True
        self.is_silent = False
        self.stops_at = None
        self.go_on = threading.Event()
        self.storage = ""
        self.asked = []
        self.tokens = []
        self.ended = threading.Event()
        self.url = ""

    def sent_bytes(self):
        """The bytes that the storage was asked for, as the first byte of each answer."""
        return [int(start) for method, path, start in self.asked if method == "GET" and path.startswith("/storage/")]

    @contextmanager
    def serving(self, authority=None):
        """Serve on a free port; with an authority over TLS. Yields this hub, whose `url` is set."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Answers, self))
        scheme = "http"
        if authority is not None:
            scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*authority)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        self.url = f"{scheme}://127.0.0.1:{server.server_port}"
        self.storage = f"{scheme}://localhost:{server.server_port}"
        try:
            yield self
        finally:
            self.ended.set()
            self.go_on.set()
            server.shutdown()
            server.server_close()
            thread.join()


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub, *arguments):
        self._hub = hub
        super().__init__(*arguments)

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def _answer(self):
        start = re.match(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1]
        path = self.path.partition("?")[0]
        self._hub.asked.append((self.command, path, start))
        if path.startswith("/storage/"):
            self._hub.tokens.append(self.headers.get("Authorization"))
            self._store(path.removeprefix("/storage/"), int(start) if self._hub.has_ranges else 0)
        else:
            self._resolve(path)

    def _resolve(self, path):
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        name = f"{found[1]}/{found[3]}" if found else ""
        if found and found[1] in self._hub.gated and self.headers.get("Authorization") != f"Bearer {self._hub.token}":
            self._refuse(401, "GatedRepo")
        elif name not in self._hub.files:
            self._refuse(404, "EntryNotFound")
        elif found[2] not in ("main", COMMIT):
            self._refuse(404, "RevisionNotFound")
        else:
            self._redirect(name)

    def _redirect(self, name):
        content = self._hub.files[name]
        etag = self._hub.hashes.get(name) or hashlib.sha256(content).hexdigest()
        if not self._hub.states_hash:
            etag = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        self.send_response(302)
        self.send_header("Location", f"{self._hub.storage}/storage/{name}")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Etag", f'"{etag}"')
        self.send_header("X-Linked-Size", str(self._hub.sizes.get(name, len(content))))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _refuse(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _store(self, name, start):
        if name not in self._hub.files:
            self._refuse(404, "")
            return
        content = self._hub.files[name]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "GET":
            self._send(content[start:])

    def _send(self, content):
        if self._hub.is_silent:
            self._hub.ended.wait()
            return
        if self._hub.cuts:
            content = content[: self._hub.cuts.pop(0)]
            self.close_connection = True
        stop = self._hub.stops_at or len(content)
        with suppress(ConnectionError):  # the one who pulls may be killed
            self.wfile.write(content[:stop])
            if content[stop:]:
                self._hub.go_on.wait()
            self.wfile.write(content[stop:])
