"""The address of a server: its own from the first moment on, though it listens late."""

import errno
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.base.config import ServeConfig
from headrace.base.errors import AddressTakenError
from headrace.serve import address as module
from headrace.serve.address import bind, listen
from tests.kit.engine import tiny_llama
from tests.serve.test_commands import run

LINUX = pytest.mark.skipif(
    sys.platform != "linux",
    reason="only Linux lets two bind an address, and has abstract sockets to claim it",
)
IPV6 = pytest.mark.skipif(
    not Path("/proc/net/if_inet6").exists() or not Path("/proc/net/if_inet6").read_text(), reason="needs IPv6"
)


def another_program(port: int) -> socket.socket:
    """A socket that is bound as `bind` does it, by somebody who knows of no claims."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock


@LINUX
def test_of_two_programs_that_took_an_address_one_may_listen() -> None:
    """Linux gives a port to both as long as neither listens."""
    with bind(ServeConfig(port=0)) as first:
        port = first.getsockname()[1]
        with another_program(port) as second:
            second.listen()
            with pytest.raises(
                AddressTakenError, match=rf"cannot listen on 127.0.0.1:{port}: .*in use.*choose"
            ) as caught:
                listen(first)
            assert caught.value.param == "serve.port"
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                second.accept()[0].close()


@LINUX
def test_an_address_belongs_to_the_server_that_loads_until_it_ends() -> None:
    """Nobody listens yet, and probes are refused; a second server is told so at once all the same."""
    with bind(ServeConfig(port=0)) as first:
        port = first.getsockname()[1]
        for _ in range(2):  # the refused one leaves nothing behind
            with pytest.raises(AddressTakenError, match=rf"127.0.0.1:{port}: another.*choose another"):
                bind(ServeConfig(port=port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        with bind(ServeConfig(host="127.0.0.2", port=port)):
            pass
        listen(first)
    bind(ServeConfig(port=port)).close()


@LINUX
def test_a_refused_server_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where another has the claim nor where it listens."""
    made: list[module.Bound] = []

    class Noted(module.Bound):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    with bind(ServeConfig(port=0)) as first:
        monkeypatch.setattr(module, "Bound", Noted)
        for _ in range(2):
            with pytest.raises(AddressTakenError):
                bind(ServeConfig(port=first.getsockname()[1]))
            listen(first)
    assert [sock.fileno() for sock in made] == [-1, -1]


@LINUX
def test_a_second_server_is_refused_while_the_first_one_loads() -> None:
    with bind(ServeConfig(port=0)) as loading:
        port = loading.getsockname()[1]
        refused = run("serve", str(tiny_llama()), "--port", str(port))
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in refused.stderr
    assert "choose another --host or --port" in refused.stderr


OVERLAPS = (
    ("0.0.0.0", "127.0.0.1"),
    ("127.0.0.1", "0.0.0.0"),
    ("0.0.0.0", "127.0.0.2"),
    *(
        pytest.param(*pair, marks=IPV6)
        for pair in (
            ("::", "127.0.0.1"),
            ("127.0.0.1", "::"),
            ("0.0.0.0", "::"),
            ("::1", "::"),
            ("::", "::1"),
            ("::ffff:127.0.0.1", "127.0.0.1"),
            ("0.0.0.0", "::ffff:127.0.0.1"),
        )
    ),
)


@LINUX
@pytest.mark.parametrize(("first", "second"), OVERLAPS)
def test_addresses_that_overlap_are_one_while_a_server_loads(first: str, second: str) -> None:
    with bind(ServeConfig(host=first, port=0)) as loading:
        port = loading.getsockname()[1]
        for _ in range(2):  # the refused one leaves no claim behind
            with pytest.raises(AddressTakenError) as caught:
                bind(ServeConfig(host=second, port=port))
            assert f"cannot listen on {second}:{port}: another Headrace, which may still" in str(caught.value)
            assert f"'@headrace serves {first}:{port}'; end it" in str(caught.value)
            assert caught.value.param == "serve.port"
        bind(ServeConfig(host=second, port=0)).close()  # another port is none of its business
        listen(loading)
    bind(ServeConfig(host=second, port=port)).close()


@LINUX
@IPV6
@pytest.mark.parametrize(("first", "second"), [("127.0.0.1", "::1"), ("::1", "0.0.0.0")])
def test_addresses_without_a_common_connection_are_two(first: str, second: str) -> None:
    with bind(ServeConfig(host=first, port=0)) as one:
        port = one.getsockname()[1]
        with bind(ServeConfig(host=second, port=port)) as other:
            listen(one)
            listen(other)


@LINUX
def test_a_program_that_holds_the_name_only_is_told_apart_from_one_that_has_the_port() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with socket.socket(socket.AF_UNIX) as somebody:
        somebody.bind(f"\0headrace serves 127.0.0.1:{port}")
        with pytest.raises(
            AddressTakenError, match=rf"or another program holds.*'@headrace serves .*{port}'"
        ):
            bind(ServeConfig(port=port))
    with bind(ServeConfig(port=port)) as listening:
        listen(listening)
        with pytest.raises(AddressTakenError, match="in use; end the program that has it") as caught:
            bind(ServeConfig(port=port))
        assert "abstract" not in str(caught.value)


class Sandboxed(socket.socket):
    """Unix sockets as a sandbox gives them: not at all, or without a name."""

    at = ""
    number = errno.EACCES

    def __init__(self, family: int = -1, *args: int) -> None:
        if self.at == "socket" and family == socket.AF_UNIX:
            raise OSError(self.number, "refused by a sandbox")
        super().__init__(family, *args)

    def bind(self, address: object) -> None:
        """Bind, unless it is a name that is refused."""
        if self.at == "bind" and self.family == socket.AF_UNIX:
            raise OSError(self.number, "refused by a sandbox")
        super().bind(address)  # type: ignore[arg-type]


@LINUX
@pytest.mark.parametrize(
    ("at", "number"), [("socket", errno.EAFNOSUPPORT), ("bind", errno.EACCES), ("bind", errno.EPERM)]
)
def test_a_sandbox_without_abstract_sockets_has_servers_all_the_same(
    monkeypatch: pytest.MonkeyPatch, at: str, number: int
) -> None:
    """They claim nothing; of two that load, the one that listens later learns of the other."""
    monkeypatch.setattr(Sandboxed, "at", at)
    monkeypatch.setattr(Sandboxed, "number", number)
    monkeypatch.setattr(module.socket, "socket", Sandboxed)
    with bind(ServeConfig(port=0)) as first:
        port = first.getsockname()[1]
        assert first.claim is None
        with bind(ServeConfig(port=port)) as second:
            listen(first)
            with pytest.raises(AddressTakenError, match="in use; end the program that has it"):
                listen(second)


@LINUX
def test_without_a_list_of_sockets_equal_addresses_are_still_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_UNIX_SOCKETS", tmp_path / "hidden")
    with bind(ServeConfig(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(AddressTakenError, match="abstract socket"):
            bind(ServeConfig(port=port))
        bind(ServeConfig(host="0.0.0.0", port=port)).close()


@LINUX
def test_other_names_in_the_list_of_sockets_are_no_claims(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Anybody may name a socket, with any bytes."""
    listed = tmp_path / "unix"
    monkeypatch.setattr(module, "_UNIX_SOCKETS", listed)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begin = b"000: 00000002 00000000 00000000 0001 01 1 "
    for name in (b"/run/a", b"@\xff\xfe", b"@headrace serves ", b"@headrace serves 0.0.0.0:1%d" % port, b""):
        listed.write_bytes(b"Num Path\n" + begin + name + b"\n")
        bind(ServeConfig(port=port)).close()
    listed.write_bytes(begin + b"@\xff\n" + begin + b"@headrace serves 0.0.0.0:%d\n" % port)
    with pytest.raises(AddressTakenError, match=rf"'@headrace serves 0\.0\.0\.0:{port}'"):
        bind(ServeConfig(port=port))
