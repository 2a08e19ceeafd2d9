"""The mqttd that sequences are played at: started with a store, killed and started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient

__all__ = ["SETTINGS", "Home"]

#: What the model takes for granted, and less to write.
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "mqueue": {"store_qos0": False},
    "sys": {"interval": "0s"},
    "log": {"connections": "off"},
    "admin": {"page": {"enabled": False}},
}
#: What a broker logs where it has a fault.
NEVER_LOGGED: Final = ("internal error", "Traceback")


class Home:
    """A broker below `path`, with a store in memory or one that outlives it (sqlite)."""

    def __init__(self, path: Path, store: str = "memory", **settings: Any) -> None:
        self.path = path
        self.settings = SETTINGS | {"store": {"kind": store}} | settings
        self.brokers: list[Broker] = [self._start()]

    def _start(self) -> Broker:
        return start_broker(self.path, **self.settings)

    @property
    def broker(self) -> Broker:
        """The one that is there."""
        return self.brokers[-1]

    @property
    def kills(self) -> int:
        """How often it was killed."""
        return len(self.brokers) - 1

    def complaints(self) -> list[str]:
        """Lines of the logs that no client may cause."""
        lines = [line for broker in self.brokers for line in broker.lines]
        return [line for line in lines if any(text in line for text in NEVER_LOGGED)]

    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return "127.0.0.1", self.broker.port

    def kill(self) -> None:
        """SIGKILL, and start it again.

        What it was told by now is kept: the store writes groups in their order, and the SUBACK of a
        session that outlives its connection waits for its own.
        """
        anchor = RawClient(self.broker.port, mq.V5)
        anchor.connect("anchor", clean=False, props=[(mq.SESSION_EXPIRY, 1000)])
        anchor.subscribe("anchor")
        anchor.close()
        self.broker.stop(hard=True)
        self.brokers.append(self._start())

    def close(self) -> None:
        """The broker ends."""
        self.broker.stop()
