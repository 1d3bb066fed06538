"""Opens the ports of a server. If a port cannot be opened, the error states the reason and the setting at fault."""

from __future__ import annotations

import errno
import socket

import grpc

from pagantic_common.domain.addresses import address_of, bare_host

BACKLOG = 128
_USES = {"METRICS_PORT": " for metrics", "ADMIN_PORT": " for probes"}
_NOT_OF_THIS_MACHINE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)


class CannotListen(Exception):
    """A server cannot listen on an address. `setting` is HOST, or the setting of the port."""

    def __init__(self, message: str, setting: str) -> None:
        super().__init__(message)
        self.setting = setting

    @classmethod
    def because_of(cls, error: OSError, host: str, port: int, setting: str) -> CannotListen:
        """Return the error for a host and port that the system refuses. `setting` is the setting of the port."""
        use = _USES.get(setting, "")
        message = f"cannot listen on {address_of(host, port)}{use}: {refusal_of(error)}"
        return cls(message, "HOST" if is_host_at_fault(error) else setting)


def open_socket(host: str, port: int) -> socket.socket:
    """Listen on a port of a host. Raises OSError if the port cannot be used.

    The host may be an IPv6 address with or without brackets.
    """
    family = socket.AF_INET
    if ":" in host:
        family = socket.AF_INET6
    place = socket.getaddrinfo(bare_host(host), port, family=family, type=socket.SOCK_STREAM)[0][4]
    return socket.create_server(place, family=family, backlog=BACKLOG)


def add_port(
    server: grpc.aio.Server, host: str, port: int, setting: str, credentials: grpc.ServerCredentials | None = None
) -> int:
    """Make a server listen on a port of a host, and return the port. Without credentials, it uses plain text.

    Raises CannotListen. `setting` is the setting of the port.
    """
    address = address_of(host, port)
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        refused = why_not(host, port)
        if refused is None:
            raise CannotListen(f"cannot listen on {address}: {error}", setting) from None
        raise CannotListen.because_of(refused, host, port, setting) from None


def why_not(host: str, port: int) -> OSError | None:
    """Return the system's error for listening on a port, because gRPC does not report it."""
    try:
        with open_socket(host, port):
            return None
    except OSError as error:
        return error


def refusal_of(error: OSError) -> str:
    """Return the reason for the system's refusal to listen, in lower case."""
    if error.errno == errno.EADDRINUSE:
        return "the port is in use"
    return (error.strerror or str(error)).partition(" (")[0].lower()


def is_host_at_fault(error: OSError) -> bool:
    """Return whether the system refuses the host rather than the port."""
    return isinstance(error, socket.gaierror) or error.errno in _NOT_OF_THIS_MACHINE
