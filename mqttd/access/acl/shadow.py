"""A candidate for the rules that runs beside them: what would it have decided?

::

    request ──► live rules ──► enforced
           └──► candidate  ──► compared: differences counted by (rule, rule), sampled in the log

The candidate stands in for the rules file alone; superusers, a client's own rules and other modules
decide as they do.  The broker remembers its answers per connection and topic, so what is compared
and counted is every answer it has to work out, not every message.

Promise: the candidate never changes an answer; it costs one decision more.  At most `MAX_PAIRS`
pairs of rules are kept, and one line of each pair per `SAMPLE_SECONDS` goes to the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from mqttd.access.acl.rules import AclRules
from mqttd.types import Action, ClientInfo, Decision, Verdict

__all__ = ["MAX_PAIRS", "SAMPLE_SECONDS", "Difference", "Shadow"]

#: Pairs of rules that differences are counted for; further ones are summed up.
MAX_PAIRS: Final = 1000
#: Seconds between two log lines about one pair of rules.
SAMPLE_SECONDS: Final = 60.0

OnDifference: TypeAlias = Callable[[dict[str, object]], None]


@dataclass(slots=True)
class Difference:
    """How often two rules disagreed, and the last request they disagreed on."""

    live: str
    shadow: str
    would: str  # "allow" or "deny"
    count: int = 0
    logged_at: float = float("-inf")
    client_id: str = ""
    username: str | None = None
    peerhost: str = ""
    kind: str = ""
    qos: int = 0
    retain: bool = False
    topic: str = ""


class Shadow:
    """The candidate read from `path`, and where it differs from the live rules.

    ``seconds()`` is a clock; ``on_difference(fields)`` gets the samples for the log.  Raises
    OSError or `AclSyntaxError` for a file that cannot be used.
    """

    def __init__(
        self,
        path: str,
        seconds: Callable[[], float],
        on_difference: OnDifference | None = None,
    ) -> None:
        self.path = path
        self.seconds = seconds
        self.on_difference = on_difference
        self.text = ""
        self.rules = AclRules(())
        self.compared: int = 0
        self.would_allow: int = 0
        self.would_deny: int = 0
        self.pairs: dict[tuple[str, str], Difference] = {}
        self._ready: tuple[str, AclRules] | Exception | None = None
        self.reload()

    def prepare(self) -> None:
        """Do the slow part of the next `reload`, in any thread."""
        try:
            text = read(self.path)
            self._ready = text, AclRules.from_text(text, self.path)
        except Exception as error:
            self._ready = error

    def reload(self) -> None:
        """Read the candidate again and start counting anew; on any error the old one stays."""
        if self._ready is None:
            self.prepare()
        ready, self._ready = self._ready, None
        if isinstance(ready, Exception):
            raise ready
        assert ready is not None
        self.text, self.rules = ready
        self.compared = self.would_allow = self.would_deny = 0
        self.pairs = {}

    def compare(
        self, client: ClientInfo, action: Action, topic: str, live: Decision, shadow: Decision
    ) -> None:
        """Note what the candidate decided beside the live decision."""
        self.compared += 1
        if live.verdict is shadow.verdict:
            return
        would = "allow" if shadow.verdict is Verdict.ALLOW else "deny"
        if would == "allow":
            self.would_allow += 1
        else:
            self.would_deny += 1
        key = (live.rule, shadow.rule)
        pair = self.pairs.get(key)
        if pair is None:
            if len(self.pairs) >= MAX_PAIRS:
                return
            pair = self.pairs[key] = Difference(live.rule, shadow.rule, would)
        pair.count += 1
        pair.client_id = client.client_id
        pair.username = client.username
        pair.peerhost = client.peerhost
        pair.kind = action.kind
        pair.qos = action.qos
        pair.retain = action.retain
        pair.topic = topic
        now = self.seconds()
        if self.on_difference is not None and now - pair.logged_at >= SAMPLE_SECONDS:
            pair.logged_at = now
            self.on_difference(
                {
                    "would": would,
                    "count": pair.count,
                    "client_id": client.client_id,
                    "username": client.username,
                    "peer": client.peerhost,
                    "action": action.kind,
                    "qos": action.qos,
                    "retain": action.retain,
                    "topic": topic,
                    "rule": live.rule,
                    "shadow_rule": shadow.rule,
                }
            )


def read(path: str) -> str:
    """The text of a rules file; raises OSError, or ValueError if it is no UTF-8."""
    with open(path, encoding="utf-8") as file:
        try:
            return file.read()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:1:1: expected UTF-8 text: {error}") from None
