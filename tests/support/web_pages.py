"""A web server with pages that mean harm: GET /name is the page of that name."""

import asyncio
import gzip
from contextlib import asynccontextmanager

BOMB = gzip.compress(bytes(64 * 2**20))
TEXT = b"content-type: text/plain; charset=utf-8\r\n"


def page(headers, body, status=b"200 OK"):
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, headers, len(body), body)


def redirect(location):
    return page(b"location: %b\r\n" % location.encode(), b"", b"302 Found")


class WebPages:
    """Serves pages; `asked` has the request lines and Host headers that came."""

    def __init__(self):
        self.asked = []
        self.pages = {
            "/plain": page(TEXT, "grün".encode()),
            "/latin": page(b"content-type: text/html; charset=latin-1\r\n", "grün".encode("latin-1")),
            "/odd-charset": page(b"content-type: text/plain; charset=zlib_codec\r\n", b"text"),
            "/gzip": page(TEXT + b"content-encoding: gzip\r\n", gzip.compress(b"packed")),
            "/bomb": page(TEXT + b"content-encoding: gzip\r\n", BOMB),
            "/no-gzip": page(TEXT + b"content-encoding: gzip\r\n", b"not packed"),
            "/brotli": page(TEXT + b"content-encoding: br\r\n", b"x"),
            "/large": page(TEXT, b"x" * 2**20),
            "/image": page(b"content-type: image/png\r\n", b"\x89PNG"),
            "/untyped": page(b"", b"x"),
            "/missing": page(TEXT, b"no such page", b"404 Not Found"),
            "/no-utf-8": page(TEXT, b"a\xff\xfeb"),
            "/headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200_000 + b"\r\n",
            "/no-http": b"SSH-2.0-server\r\n",
            "/silent": b"",
            "/cut": b"HTTP/1.1 200 OK\r\n%bcontent-length: 100\r\n\r\nhalf" % TEXT,
            "/loop": redirect("/loop"),
            "/to-plain": redirect("/plain"),
            "/to-metadata": redirect("http://169.254.169.254/latest/meta-data"),
            "/to-file": redirect("file:///etc/passwd"),
            "/to-password": redirect("http://user:password@127.0.0.1/"),
            "/to-nothing": redirect("http://[::1"),
        }

    async def answer(self, reader, writer):
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            self.asked.append(lines[0])
            self.asked += [line for line in lines if line.lower().startswith("host:")]
            path = lines[0].split()[1].partition("?")[0]
            if path == "/slow":
                await self._drip(writer)
            writer.write(self.pages.get(path, self.pages["/missing"]))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _drip(self, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: 100000\r\n\r\n" % TEXT)
        for _ in range(200):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)


@asynccontextmanager
async def web_pages(**tls):
    """Serve on a free port of 127.0.0.1; yields the pages and the port."""
    pages = WebPages()
    server = await asyncio.start_server(pages.answer, "127.0.0.1", 0, **tls)
    try:
        yield pages, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
