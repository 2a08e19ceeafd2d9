"""A headless Chromium, driven by the DevTools protocol over a pipe: no driver, no further library.

with Chromium() as browser:
    page = browser.open("http://127.0.0.1:8083/")
    page.wait("document.title === 'mqttd'")
    page.evaluate("1 + 1")
"""

from __future__ import annotations

import itertools
import json
import os
import select
import subprocess
import tempfile
import time
from typing import Any, Final

from tests.support.needs import needs_program

__all__ = ["Chromium", "Page"]

DEADLINE: Final = 30.0  # seconds


class Chromium:
    """The browser; its profile is gone with it. Console messages and errors are in `console`."""

    def __init__(self) -> None:
        program = needs_program("chromium", "chromium")
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read_end, write_end = os.pipe()
        result_read, result_write = os.pipe()
        # --remote-debugging-pipe: it reads requests from 3 and writes answers to 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{read_end} 4>&{result_write}', "chromium", program,
             "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--ignore-certificate-errors", "--remote-debugging-pipe",
             f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(read_end, result_write),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._profile.name},
        )  # fmt: skip
        os.close(read_end)
        os.close(result_write)
        self._write, self._read = write_end, result_read
        self._rest = b""
        self._ids = itertools.count(1)
        self.console: list[str] = []

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *failure: object) -> None:
        os.close(self._write)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        self._profile.cleanup()

    def open(self, url: str) -> Page:
        """A new page at `url`."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.call("Page.navigate", url=url)
        return page

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """One request; events that come before its answer are looked through for errors."""
        number = next(self._ids)
        request: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session:
            request["sessionId"] = session
        os.write(self._write, json.dumps(request).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                result: dict[str, Any] = message["result"]
                return result
            self._event(message)

    def _event(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.console.append(str(params["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded":
            self.console.append(f"{params['entry']['level']}: {params['entry']['text']}")

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + DEADLINE
        while b"\0" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise TimeoutError("chromium does not answer")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise ConnectionError("chromium has ended")
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found


class Page:
    """One page."""

    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self.browser = browser
        self.session = session
        self.target = target

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until the expression is true."""
        end = time.monotonic() + DEADLINE
        while not (found := self.evaluate(expression)):
            shown = self.evaluate("document.body ? document.body.innerText : ''")
            assert time.monotonic() < end, (expression, shown, self.browser.console)
            time.sleep(0.05)
        return found
