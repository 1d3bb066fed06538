"""A connection that a test cuts: a port before another one, which closes every connection while it is cut."""

import asyncio
from contextlib import asynccontextmanager, suppress


class Relay:
    """Passes bytes on, both ways, until it is cut."""

    def __init__(self, port):
        self._port = port
        self._writers = set()
        self.is_cut = False
        self.cut_count = 0

    def cut(self):
        """Close every connection, and each one that is opened until `mend`."""
        self.is_cut = True
        self.cut_count += len(self._writers)
        for writer in list(self._writers):
            writer.transport.abort()

    def mend(self):
        self.is_cut = False

    async def serve(self, reader, writer):
        if self.is_cut:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
        finally:
            self._writers -= {writer, back}


async def _pump(reader, writer):
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def relayed(port):
    """Yield a relay before a port of this machine, and the port where it listens."""
    relay = Relay(port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    try:
        yield relay, server.sockets[0].getsockname()[1]
    finally:
        relay.cut()
        server.close()
