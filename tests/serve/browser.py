"""A headless Chromium, driven over its DevTools protocol: open a page, ask it something, look at it."""

import base64
import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
START_S = 30.0


def find() -> str | None:
    """The program; None: there is none on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.errors: list[str] = []
        """What the page threw, or its policy forbade."""
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        wanted = next(self._ids)
        self._socket.send(json.dumps({"id": wanted, "method": method, "params": params}))
        while True:
            got = json.loads(self._socket.recv(timeout=START_S))
            if got.get("id") == wanted:
                assert "error" not in got, got
                return got["result"]
            if got.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(got["params"]["exceptionDetails"]))
            elif got.get("method") == "Log.entryAdded" and got["params"]["entry"]["level"] == "error":
                self.errors.append(json.dumps(got["params"]["entry"]))

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression: str, seconds: float = 20.0) -> Any:
        """The first true value of an expression."""
        end = time.monotonic() + seconds
        while not (found := self.ask(expression)):
            assert time.monotonic() < end, f"never true: {expression}; {self.errors}"
            time.sleep(0.1)
        return found

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self) -> bytes:
        """PNG of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


@contextmanager
def opened(url: str, folder: Path) -> Iterator[Page]:
    """A page at `url` in a browser of its own, whose files lie in `folder`."""
    program = find()
    assert program is not None
    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--disable-dev-shm-usage", "--remote-debugging-port=0", f"--user-data-dir={folder}", url]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with connect(_socket_of_page(folder, process), max_size=None) as socket:
            yield Page(socket)
    finally:
        process.kill()
        process.wait()


def _socket_of_page(folder: Path, process: "subprocess.Popen[bytes]") -> str:
    from urllib.request import urlopen

    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert process.poll() is None, "the browser ended"
        told = folder / "DevToolsActivePort"
        if told.exists() and (port := re.match(r"\d+", told.read_text())):
            with urlopen(f"http://127.0.0.1:{port[0]}/json/list", timeout=5) as answer:
                pages = [page for page in json.load(answer) if page["type"] == "page"]
            if pages:
                return pages[0]["webSocketDebuggerUrl"]
        time.sleep(0.1)
    raise AssertionError("the browser shows no page")
