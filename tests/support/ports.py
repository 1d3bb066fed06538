"""Ports of this machine that nobody listens on."""

import socket


def free_ports(count):
    """Return ports that nobody listens on now."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
