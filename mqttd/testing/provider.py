"""What the conformance classes share: a provider of an interface, made anew for each test."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from zope.interface import Interface
from zope.interface.verify import verifyObject

from mqttd.testing.plugin import result_of

__all__ = ["HOSTILE", "Conformance"]

T = TypeVar("T")

#: Seconds the reactor thread may be held by one call: much more than is good, for slow machines.
PROMPT: Final = 1.0

#: Names that clients have tried on brokers.
HOSTILE: Final = (
    "",
    "x" * 65535,
    "+",
    "#",
    "$SYS/#",
    "a/../../etc/passwd",
    "a' OR '1'='1",
    "*)(uid=*",
    "%c/%u",
    "{}{0}%s%n",
    "\n{allow, all}.",
    "\x7f\u202e\ufeff\U0010ffff",
)


class Conformance:
    """What all of them share."""

    #: The interface that the provider claims.
    interface: type[Interface]
    #: An empty directory of this test's own.
    directory: Path

    def make(self) -> Any:
        """A new provider, as the broker would get it. To be overridden."""
        raise NotImplementedError("override make(): it gives a new provider")

    def wait(self, answer: Any) -> Any:
        """The value of an answer that may be a Deferred; override it to turn a clock."""
        return result_of(answer)

    def setup_method(self) -> None:
        """pytest calls it before each test."""
        self._temporary = tempfile.TemporaryDirectory(prefix="mqttd-conformance-")
        self.directory = Path(self._temporary.name)

    def teardown_method(self) -> None:
        """pytest calls it after each test."""
        self._temporary.cleanup()

    def test_it_provides_its_interface(self) -> None:
        """zope.interface.verify finds every method, with the right arguments."""
        verifyObject(self.interface, self.make())

    def test_it_describes_itself_in_one_line(self) -> None:
        """For operators' lists."""
        if "description" not in self.interface:
            return
        text = self.make_ready().description()
        assert isinstance(text, str) and text, f"description() gave {text!r}"
        assert "\n" not in text, f"description() has more than one line: {text!r}"

    def make_ready(self) -> Any:
        """A provider in use."""
        return self.make()

    def promptly(self, call: Callable[[], T], what: str) -> T:
        """Call, and see that the reactor thread was not held."""
        begin = time.perf_counter()
        answer = call()
        took = time.perf_counter() - begin
        assert took < PROMPT, f"{what} held the reactor thread for {took:.1f} s"
        return answer
