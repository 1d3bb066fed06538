"""A relay in front of a server, through which a test loses connections as in a network."""

import asyncio
from contextlib import asynccontextmanager, suppress

CHUNK_BYTES = 65536


class Relay:
    """Passes bytes on in both directions, until the connections are reset or cut."""

    def __init__(self, target):
        self.target = target
        self.address = ""
        self.lost_count = 0
        self._is_cut = False
        self._writers = set()

    def reset(self):
        """Break every connection; the next ones work."""
        self.lost_count += len(self._writers)
        for writer in self._writers:
            writer.transport.abort()

    def cut(self):
        """Break every connection, and each one that is opened until `mend`."""
        self._is_cut = True
        self.reset()

    def mend(self):
        """Let connections work again."""
        self._is_cut = False

    async def accept(self, reader, writer):
        """Connect a client with the server."""
        host, _, port = self.target.rpartition(":")
        try:
            if self._is_cut:
                raise ConnectionResetError
            server_reader, server_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        if self._is_cut:  # while the server was called
            writer.transport.abort()
            server_writer.transport.abort()
            return
        pair = {writer, server_writer}
        self._writers |= pair
        try:
            await asyncio.gather(_pass_on(reader, server_writer), _pass_on(server_reader, writer))
        finally:
            self._writers -= pair
            for one in pair:
                one.close()


async def _pass_on(reader, writer):
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def relaying(target):
    """Relay connections to a target, host:port, from a port of the relay's own."""
    relay = Relay(target)
    server = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
    async with server:
        relay.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield relay
        finally:
            relay.reset()
