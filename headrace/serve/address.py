"""The address to listen on: taken before anything is started, so that a taken port fails at once.

Imports no package of the server, so that the engine process can start before those are there.
"""

import errno
import socket
import sys

from headrace.base.config import ServeConfig
from headrace.base.errors import AddressTakenError, ConfigError, HeadraceError

MAX_PORT = 65535


class Bound(socket.socket):
    """A bound socket of a server that may still be loading, with its claim to the address.

    Two sockets may be bound to one address as long as neither listens, and listening before the model is
    there would let clients connect and wait. So a server also takes a name among the abstract Unix sockets,
    which belong to a network namespace as ports do, and which end with the process, however it ends.
    """

    claim: socket.socket | None = None

    def close(self) -> None:
        """Give up the address."""
        super().close()
        if self.claim is not None:
            self.claim.close()


def bind(config: ServeConfig) -> Bound:
    """A bound socket; it does not listen yet (`listen`).

    Raises:
        AddressTakenError: another program listens there, or another server is about to.
        ConfigError: the address cannot be used, or a setting is out of range.
    """
    check(config)
    sock: Bound | None = None
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = Bound(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.claim = _claim(sock)
    except (OSError, OverflowError) as err:
        if sock is not None:
            sock.close()
        raise _refusal(config.host, config.port, err) from err
    return sock


def listen(sock: socket.socket) -> None:
    """Let clients connect.

    Raises:
        AddressTakenError: another program took the address meanwhile: both had it while neither listened.
        ConfigError: the address cannot be used.
    """
    host, port = sock.getsockname()[:2]
    try:
        sock.listen()
    except OSError as err:
        raise _refusal(host, port, err) from err


def _claim(sock: socket.socket) -> socket.socket | None:
    """A name that no other server can have while it has this address; None: not on this system.

    Raises:
        OSError: another one has it.
    """
    if sys.platform != "linux":
        return None
    host, port = sock.getsockname()[:2]
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0headrace serves {host}:{port}")
    except OSError:
        claim.close()
        raise
    return claim


def _refusal(host: str, port: int, err: Exception) -> HeadraceError:
    remedy = "choose another --host or --port (0: any free port)"
    if isinstance(err, OSError) and err.errno == errno.EADDRINUSE:
        return AddressTakenError(
            f"cannot listen on {host}:{port}: {err}; end the program that has it, or {remedy}",
            param="serve.port",
        )
    return ConfigError(f"cannot listen on {host}:{port}: {err}; {remedy}", param="serve.port")


def check(config: ServeConfig) -> None:
    """Refuse numbers that cannot be meant.

    Raises:
        ConfigError: a setting is out of range.
    """
    if not 0 <= config.port <= MAX_PORT:
        raise ConfigError(f"serve.port must be in [0, {MAX_PORT}], got {config.port}", param="serve.port")
    if config.max_body_bytes < 1:
        raise ConfigError(
            f"serve.max_body_bytes must be at least 1, got {config.max_body_bytes}",
            param="serve.max_body_bytes",
        )
    if not config.write_timeout_s > 0:
        raise ConfigError(
            f"serve.write_timeout_s must be positive, got {config.write_timeout_s:g}",
            param="serve.write_timeout_s",
        )
    if config.drain_s < 0:
        raise ConfigError(
            f"serve.drain_s must not be negative, got {config.drain_s:g}; 0 cuts at once",
            param="serve.drain_s",
        )


def url_of(sock: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
