"""Free ports of this machine."""

import random
import socket

# They are below the ports of outgoing connections, which would take a port before a service listens on it.
PORTS = range(10_000, 32_768)


def free_ports(count):
    """Return ports that nobody listens on now."""
    ports = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if len(ports) == count:
            return ports
        try:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        ports.append(port)
    raise AssertionError(f"fewer than {count} ports are free")
