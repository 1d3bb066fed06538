"""An identity provider over real HTTP, whose keys and answers a test changes."""

import contextlib
import http.server
import json
import threading
import time

from joserfc import jwt

AUDIENCE = "pagantic"
LIFETIME_S = 600


class IdentityProvider:
    """Serves discovery and keys on a free port, and counts what it was asked.

    `answers` replaces an answer by its path: bytes, a status, or a function that gives one of them.
    """

    def __init__(self, *keys):
        self.keys = list(keys)
        self.answers = {}
        self.asked = []
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                provider.asked.append(self.path)
                answer = provider.answer(self.path)
                status = answer if isinstance(answer, int) else 200
                self.send_response(status)
                if status in (301, 302):
                    self.send_header("Location", f"{provider.url}/elsewhere")
                self.end_headers()
                if isinstance(answer, bytes):
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it was given up
                        self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def fetches(self):
        """How often keys were fetched."""
        return self.asked.count("/keys")

    def answer(self, path):
        if path in self.answers:
            given = self.answers[path]
            return given() if callable(given) else given
        if path == "/.well-known/openid-configuration":
            return json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"}).encode()
        if path == "/keys":
            return json.dumps({"keys": [self._public(key) for key in self.keys]}).encode()
        return 404

    def close(self):
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def token(self, key=None, algorithm="ES256", header=(), **claims):
        """Return a right token, but for what is given; a claim that is None is left out."""
        key = key or self.keys[0]
        now_s = int(time.time())
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "billing",
            "exp": now_s + LIFETIME_S,
            "org": "acme",
            "scope": "openid pagantic:execute pagantic:read",
            **claims,
        }
        fields = {"alg": algorithm, "kid": key.thumbprint(), **dict(header)}
        kept = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode({k: v for k, v in fields.items() if v is not None}, kept, key, algorithms=[algorithm])

    def _public(self, key):
        return {**key.as_dict(private=False), "kid": key.thumbprint(), "use": "sig"}
