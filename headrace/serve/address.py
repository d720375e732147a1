"""The address to listen on: taken before anything is started, so that a taken port fails at once.

Imports no package of the server, so that the engine process can start before those are there.
"""

import contextlib
import errno
import socket
import sys
from pathlib import Path

from headrace.base.config import ServeConfig
from headrace.base.errors import AddressTakenError, ConfigError, HeadraceError

MAX_PORT = 65535
_CLAIM = "headrace serves "
"""Begins the names of claims."""
_REMEDY = "choose another --host or --port (0: any free port)"
_UNIX_SOCKETS = Path("/proc/net/unix")
"""Lists them all, those of this network namespace alone."""


class Bound(socket.socket):
    """A bound socket of a server that may still be loading, with its claim to the address.

    Two sockets may be bound to one address as long as neither listens, and listening before the model is
    there would let clients connect and wait. So on Linux a server also takes a name among the abstract Unix
    sockets, which belong to a network namespace as ports do, and which end with the process, however it ends.
    Where it gets none (another system, a sandbox), it learns of another server only in `listen`.
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
    with contextlib.ExitStack() as undo:
        try:
            family, kind, proto, _, address = socket.getaddrinfo(
                config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            sock = undo.enter_context(Bound(family, kind, proto))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.claim = _claim(*sock.getsockname()[:2])
        except (OSError, OverflowError) as err:
            raise _refusal(config.host, config.port, err) from err
        undo.pop_all()
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


def _claim(host: str, port: int) -> socket.socket | None:
    """A name that no other server can have while it has this address; None: this system gives none.

    Of two servers that claim overlapping addresses in the same moment, both may be refused.

    Raises:
        AddressTakenError: another one has it, or the name of an address that overlaps.
    """
    if sys.platform != "linux":
        return None
    claim: socket.socket | None = None
    try:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        claim.bind(f"\0{_CLAIM}{host}:{port}")
    except OSError as err:
        if claim is not None:
            claim.close()
        if err.errno == errno.EADDRINUSE:
            raise _claimed(host, port, host) from err
        return None  # as where there are none
    for other in _claimed_hosts(port):  # behind its own claim: who comes later sees that
        if other != host and _overlap(host, other):
            claim.close()
            raise _claimed(host, port, other)
    return claim


def _claimed_hosts(port: int) -> list[str]:
    """The hosts at which servers claim this port; none where the system does not tell."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = _UNIX_SOCKETS.read_text(errors="replace").splitlines()
    names = (line.partition(f" @{_CLAIM}")[2] for line in lines)
    return [host for host, _, found in (name.rpartition(":") for name in names) if found == str(port)]


def _overlap(one: str, other: str) -> bool:
    """Whether two addresses of one port have a connection that both would take."""
    pair = {host.removeprefix("::ffff:") for host in (one, other)}
    if "::" in pair:  # of IPv4 too, unless the system is set up otherwise
        return True
    return len(pair) == 1 or ("0.0.0.0" in pair and not any(":" in host for host in pair))


def _claimed(host: str, port: int, other: str) -> AddressTakenError:
    name = f"{_CLAIM}{other}:{port}"
    return AddressTakenError(
        f"cannot listen on {host}:{port}: another Headrace, which may still load, or another program holds "
        f"the abstract socket '@{name}'; end it (`ss -xap | grep '{name}'` shows which it is), or {_REMEDY}",
        param="serve.port",
    )


def _refusal(host: str, port: int, err: Exception) -> HeadraceError:
    if isinstance(err, OSError) and err.errno == errno.EADDRINUSE:
        return AddressTakenError(
            f"cannot listen on {host}:{port}: {err}; end the program that has it, or {_REMEDY}",
            param="serve.port",
        )
    return ConfigError(f"cannot listen on {host}:{port}: {err}; {_REMEDY}", param="serve.port")


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
