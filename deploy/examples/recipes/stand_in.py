"""A stand-in for a hosted model: answers chats of OpenAI's API on local port 9099, always with the same words."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ADDRESS = ("127.0.0.1", 9099)
WORDS = "The hosted model says: a lighthouse guides ships."
USAGE = {"prompt_tokens": 8, "completion_tokens": 9, "total_tokens": 17}


class Chats(BaseHTTPRequestHandler):
    """Answers each POST with a stream of chunks."""

    def do_POST(self) -> None:
        """Stream the words, followed by the usage."""
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for word in WORDS.split(" "):
            self._send({"delta": {"role": "assistant", "content": f"{word} "}, "finish_reason": None})
        self._send({"delta": {}, "finish_reason": "stop"})
        self._write({"id": "1", "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, choice: dict[str, object]) -> None:
        self._write({"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, **choice}]})

    def _write(self, chunk: dict[str, object]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())


if __name__ == "__main__":
    ThreadingHTTPServer(ADDRESS, Chats).serve_forever()
