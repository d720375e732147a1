"""The address to listen on: taken before anything is started, so that a taken port fails at once.

Imports no package of the server, so that the engine process can start before those are there.
"""

import socket

from headrace.base.config import ServeConfig
from headrace.base.errors import ConfigError

MAX_PORT = 65535


def bind(config: ServeConfig) -> socket.socket:
    """A bound socket; it does not listen yet (`listen`).

    Raises:
        ConfigError: the address cannot be used, or a setting is out of range.
    """
    check(config)
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except (OSError, OverflowError) as err:
        raise _refusal(config.host, config.port, err) from err
    return sock


def listen(sock: socket.socket) -> None:
    """Let clients connect.

    Raises:
        ConfigError: another program took the address meanwhile: as long as neither listened, both had it.
    """
    host, port = sock.getsockname()[:2]
    try:
        sock.listen()
    except OSError as err:
        raise _refusal(host, port, err) from err


def _refusal(host: str, port: int, err: Exception) -> ConfigError:
    return ConfigError(
        f"cannot listen on {host}:{port}: {err}; choose another --host or --port (0: any free port)",
        param="serve.port",
    )


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
