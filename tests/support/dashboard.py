"""The dashboard in a browser: its pages, log-in, forms, keys, and what axe-core finds on it."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from typing import Any, Final

from tests.support.broker import Broker
from tests.support.chromium import Chromium, Page
from tests.support.needs import cache_folder, missing, needs_program

__all__ = ["AXE", "PAGES", "Dashboard", "page_port"]

#: The words behind `#`, of pages that need nothing of their own.
PAGES: Final = (
    "overview", "clients", "subscriptions", "topics", "retained", "alarms", "why", "log", "memory",
    "metrics", "nodes", "spark", "access/explain", "access/who", "access/rules", "access/lint",
    "access/shadow", "access/chain", "roles", "roles/roles", "roles/groups", "users", "bans",
    "listeners", "plugins", "plugins/spark", "config", "drain", "audit", "api",
)  # fmt: skip
AXE: Final = "4.14.1"


def page_port(broker: Broker) -> int:
    """Where the page of a broker is."""
    found = re.search(r"dashboard on port (\d+)", broker.output)
    assert found is not None, broker.output
    return int(found[1])


class Dashboard:
    """One tab of `browser` at the page of `broker`."""

    def __init__(self, browser: Chromium, broker: Broker, path: str = "/") -> None:
        self.browser = browser
        self.port = page_port(broker)
        self.page: Page = browser.open(f"http://127.0.0.1:{self.port}{path}")
        self.wait = self.page.wait
        self.evaluate = self.page.evaluate
        self.wait("!!document.querySelector('main h1')")

    def fill(self, form: str, **values: object) -> None:
        """Fill a form in, by its name, and send it."""
        self.wait(f"!!document.querySelector('form[aria-label=\"{form}\"]')")
        self.evaluate(
            f"""(() => {{
                const form = document.querySelector('form[aria-label="{form}"]');
                for (const [name, value] of Object.entries({json.dumps(values)})) {{
                    const control = form.elements[name];
                    if (control.type === "checkbox") control.checked = value;
                    else control.value = value;
                }}
                form.requestSubmit();
            }})()"""
        )

    def log_in(self, name: str, password: str) -> None:
        self.fill("Log in", username=name, password=password)

    def enter(self, name: str, password: str) -> None:
        """Log in, and wait until it is done."""
        self.log_in(name, password)
        self.wait(f"document.getElementById('who').textContent.startsWith({json.dumps(name)})")

    def go(self, name: str) -> None:
        """Another page, whole."""
        self.evaluate(
            f"document.querySelector('main').firstChild?.setAttribute('data-old', '');"
            f"location.hash = {json.dumps(name)}"
        )
        self.wait("!document.querySelector('[data-old]') && !!document.querySelector('main h1')")

    def shows(self, text: str) -> Any:
        """Wait until the page has this text."""
        return self.wait(f"document.body.innerText.includes({json.dumps(text)})")

    def click(self, label: str, within: str = "main, dialog") -> None:
        """Press a button or follow a link, by its name."""
        find = (
            f"[...document.querySelectorAll({json.dumps(within)})].flatMap(one =>"
            " [...one.querySelectorAll('button, a')]).findLast(one => !one.disabled &&"
            f" (one.getAttribute('aria-label') || one.textContent) === {json.dumps(label)})"
        )
        self.wait(f"!!{find}")
        self.evaluate(f"{find}.click()")

    def press(self, key: str, shift: bool = False) -> None:
        """A key of the keyboard."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        known = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key],
                 "modifiers": 8 if shift else 0}  # fmt: skip
        if key == "Enter":
            known["text"] = "\r"
        for kind in ("keyDown", "keyUp"):
            self.page.call("Input.dispatchKeyEvent", type=kind, **known)

    def dyed(self, colours: str) -> None:
        """`dark` or `light`, as the system wishes."""
        features = [{"name": "prefers-color-scheme", "value": colours}]
        self.page.call("Emulation.setEmulatedMedia", features=features)

    def sized(self, width: int, height: int, phone: bool = False) -> None:
        self.page.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                       deviceScaleFactor=1, mobile=phone)  # fmt: skip

    def faults(self) -> list[str]:
        """What axe-core finds serious or critical: rule, and where."""
        if not self.evaluate("typeof axe === 'object'"):
            self.evaluate(_axe() + "; true")
        found = self.evaluate("axe.run(document, { resultTypes: ['violations'] })")
        return [
            f"{rule['id']}: {node['html'][:200]} {node.get('failureSummary', '')[:200]}"
            for rule in found["violations"]
            if rule["impact"] in ("serious", "critical")
            for node in rule["nodes"][:3]
        ]


@cache
def _axe() -> str:
    """The script of axe-core, from npm."""
    folder = cache_folder(f"axe-core-{AXE}")
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        npm = needs_program("npm", "npm")
        words = ["install", "--prefix", str(folder), "--no-audit", "--no-fund", f"axe-core@{AXE}"]
        done = subprocess.run(
            [npm, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode:
            missing("axe-core", f"npm {' '.join(words)} ({done.stderr[-200:]})")
    return script.read_text()
