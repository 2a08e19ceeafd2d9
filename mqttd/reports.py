"""What the parts of a broker report, told to those who want it: the log, alarms, the audit, rights.

access rules, authentication, roles --.
the event loop, the collector ---------+--> Reports --> log lines, alarms, counters
                                               `--> connections of users who may no more end
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqttd.broker.broker import Broker
from mqttd.monitor.event_log import EventLog
from mqttd.monitor.trail import Trail
from mqttd.types import Action, ClientInfo

__all__ = ["Reports"]


class Reports:
    """Takes reports from the start on; `broker`, `trail` and `audited` come as they are made."""

    broker: Broker

    def __init__(self, events: EventLog) -> None:
        self.events = events
        self.trail: Trail | None = None
        #: Told of users who were changed in a file: what, before, after.
        self.audited: Callable[[str, Any, Any], None] = lambda what, before, after: None
        #: Told when a file of users was read, as it is now.
        self.files_taken: Callable[[], None] = lambda: None

    def denied(self, client: ClientInfo, action: Action, topic: str, rule: str) -> None:
        """An access rule has said no."""
        if self.trail is not None:
            self.trail.because(rule)
        if not self.events.admits("denied"):
            self.broker.nobody_hears()
            return
        self.events(
            "denied",
            {
                "client_id": client.client_id,
                "username": client.username,
                "peer": client.peerhost,
                "action": action.kind,
                "qos": action.qos,
                "topic": topic,
                "rule": rule,
            },
        )

    def look(self) -> None:
        """A few times a second: what was refused meanwhile, and nobody was told of one by one."""
        broker = self.broker
        untold, broker.untold = broker.untold, 0
        unkept, broker.unkept = broker.unkept, 0
        if untold:
            self.events.passed_over("denied", untold)
        if unkept and self.trail is not None:
            self.trail.passed_over("denied", unkept)
        broker.tap_denied = True

    def alarm(self, name: str, text: str) -> None:
        """Raise an alarm of the listeners; without a text it is over."""
        if text:
            self.broker.alarms.activate(name, text)
        else:
            self.broker.alarms.clear(name)

    def overloaded(self, begins: bool, lag: float) -> None:
        """The event loop is too late for further clients, or has recovered."""
        self.broker.overloaded = begins
        self.events("overload", {"refusing": begins, "lag_seconds": round(lag, 3)})
        text = f"the event loop is {lag:.1f} s late: new clients are refused"
        self.alarm("overload", text if begins else "")

    def paused(self, seconds: float) -> None:
        """The garbage collector held the loop."""
        self.events("garbage collector paused", {"seconds": round(seconds, 3)})

    def access_event(self, event: str, fields: dict[str, object]) -> None:
        """What an operator should know of authentication: log it, keep an alarm while it lasts."""
        self.events(event, fields)
        if event == "users changed":
            had = {name: fields[name] for name in ("removed", "changed") if fields[name]}
            has = {name: fields[name] for name in ("added", "changed") if fields[name]}
            self.audited(f"users of {fields['module']}", had, has)
            self.files_taken()
            return
        name = f"users of {fields.get('module')}"
        if event == "user file not taken":
            text = f"the file does not count, and a start would fail: {fields['error']}"
            self.broker.alarms.activate(name, text)
        elif event == "user file taken again":
            self.broker.alarms.clear(name)
            self.files_taken()
        name = f"auth breaker {fields.get('module')}"
        if event == "auth breaker opened":
            text = f"authentication by {fields['module']} fails: {fields['error']}"
            self.broker.alarms.activate(name, text)
        elif event == "auth breaker closed":
            self.broker.alarms.clear(name)

    def revoked(self, module: str, names: frozenset[str]) -> None:
        """Users are gone or have new passwords: so are their connections."""
        self.broker.revoke_users(module, names, module == "clientid")

    def roles_changed(self, disabled: bool) -> None:
        """Roles are others, or those of others: rights are asked for again."""
        self.broker.access_changed()
        if disabled:
            self.broker.enforce_bans()

    def counted(self, name: str) -> None:
        """Something happened that a metric counts."""
        metrics = self.broker.metrics
        setattr(metrics, name, getattr(metrics, name) + 1)
