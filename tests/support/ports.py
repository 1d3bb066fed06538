"""Free ports of this machine."""

import random
import socket
from contextlib import suppress

# They are below the ports of outgoing connections, which would take a port before a service listens on it.
PORTS = range(10_000, 32_768)
_RANDOM = random.SystemRandom()  # no seed of a test repeats its ports


def free_ports(count):
    """Return ports that nobody listens on now."""
    ports = set()
    while len(ports) < count:
        port = _RANDOM.choice(PORTS)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            ports.add(port)
    return list(ports)
