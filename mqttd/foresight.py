"""Whom a reload would reach, found before it is applied: connections, subscriptions, users, rules.

    configuration in force, and as the file has it ──┐
    users and rules in force, and as their files are ─┼─> Foresight ─> files, warnings
    clients ─────────────────────────────────────────┘

Promise: nothing is changed and nothing is counted; sessions are looked at in slices
(`mqttd.readmodel.slices`), however many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from twisted.internet.defer import Deferred

from mqttd.access.by_listener import AccessByListener
from mqttd.access.rereading import FileChange, changes_of
from mqttd.admin.ctl.printing import counted
from mqttd.broker.sessions.login import module_of
from mqttd.codec.topic import split_shared
from mqttd.config.schema import Config
from mqttd.readmodel.slices import Run, Slice
from mqttd.session.routes.route import QOS_MASK
from mqttd.types import Action, ClientInfo, Verdict

__all__ = ["Foresight"]

#: Part of the subscriptions from which an operator is asked first.
_TENTH: Final = 10

Json = dict[str, Any]


class Foresight:
    """What a reload would do to whom.

    Arguments: the `mqttd.service.MqttdService`, the configuration in force and the one that would
    be, and `trial`: access control as the files have it.
    """

    def __init__(
        self, service: Any, before: Config, after: Config, trial: AccessByListener
    ) -> None:
        self.service = service
        self.before = before
        self.after = after
        self.trial = trial
        #: Files of users and rules that differ from what is in force.
        self.changes: list[FileChange] = []
        #: Connections that end, by why.
        self._ended: Counter[str] = Counter()
        self._revoked = self._subscriptions = 0
        self._theirs = service.gate.plugins_modules()

    def look(self, run: Run) -> Deferred[Any]:
        """Look at everybody; `run` works an iterator off."""
        inner = self.service.access
        self.changes = changes_of(inner.common, self.trial.common)
        told = {change.module for change in self.changes if change.module}
        for name, access in self.trial.own.items():
            if name in inner.own:
                of = changes_of(inner.own[name], access, name)
                # Their users are those of the same files.
                self.changes += [change for change in of if change.module not in told]
        return run(self._sessions())

    @property
    def files(self) -> list[Json]:
        """What the files of rules and users would change, as the API shows it."""
        return [change.describe() for change in self.changes]

    def warnings(self) -> list[str]:
        """What an operator should know before this plan is applied."""
        service, after = self.service, self.after
        found: list[str] = []
        for door in service.doors.doors.values():
            gone = door.configured and door.name not in after.listener.get(door.kind, {})
            count = door.describe()["connections"]
            if gone and count:
                found.append(f"closes listener {door.id}, with {counted(count, 'connection')}")
        found += service.control.locks_out(self.before, after)
        if self._admits_nobody():
            never = "anonymous" in after.auth.chain
            key = 'auth.anonymous = "never"' if never else "auth.chain"
            found.append(f"locks everybody out, by {key}: nobody else has anybody to let in")
        for why, count in self._ended.items():
            found.append(f"ends the connections of {counted(count, 'client')}, by {why}")
        if self._revoked * _TENTH > self._subscriptions:
            part = self._revoked * 100 // self._subscriptions
            found.append(f"revokes {part} % of the subscriptions that clients hold")
        return found

    def _admits_nobody(self) -> bool:
        """Whether every module of the chain is built in and has nobody to let in."""
        auth = self.after.auth
        if self._theirs and set(self.before.plugins.load) <= set(self.after.plugins.load):
            return False  # a plugin's module is asked whether the chain names it or not
        if auth.chain and "anonymous" in auth.chain and auth.anonymous != "never":
            return False
        return all(
            name == "anonymous" or self.trial.authentication.names_of(name) == 0
            for name in auth.chain
        )

    # -- everybody -----------------------------------------------------------------------------

    def _sessions(self) -> Iterator[None]:
        broker = self.service.broker
        names = {(change.listener, change.module): change for change in self.changes}
        slice_ = Slice()
        for client_id in list(broker.sessions):
            session = broker.sessions.get(client_id)
            if session is None:
                continue
            client = broker.client_of(session)
            listener = client.listener if client.listener in self.trial.own else ""
            rules = names.get((listener, ""))
            if session.channel is not None or client.peerhost:
                # Else nobody knows its address: it is judged when its client is back.
                yield from self._subscribed(session, client, rules, slice_)
            module = module_of(getattr(broker.channel_of(session), "auth", None))
            if module and module not in self._theirs:
                users = names.get((listener, module)) or names.get(("", module))
                self._connected(client, module, users)
            if slice_.over():
                yield
                slice_.begin()

    def _connected(self, client: ClientInfo, module: str, names: FileChange | None) -> None:
        """A connection that `module` let in."""
        if self.before.auth != self.after.auth and not self.trial.still_admits(client, module):
            self._ended[self._why(client, module)] += 1
        elif names is not None:
            name = client.client_id if module == "clientid" else client.username
            if name in names.gone:
                names.connected[name] += 1
                names.clients += 1

    def _why(self, client: ClientInfo, module: str) -> str:
        """The key that would not let in a client which `module` let in before."""
        if module == "anonymous" and module in self.after.auth.chain:
            return f'auth.anonymous = "{self.after.auth.anonymous}"'
        return f"auth.chain, which has no {module}"

    def _subscribed(
        self, session: Any, client: ClientInfo, rules: FileChange | None, slice_: Slice
    ) -> Iterator[None]:
        """What a session would lose of its subscriptions."""
        access = self.service.access
        now = access.own.get(client.listener, access.common)
        then = self.trial.own.get(client.listener, self.trial.common)
        lost = 0
        for full_filter, options in list((session.subscriptions or {}).items()):
            if slice_.over():
                yield
                slice_.begin()
            self._subscriptions += 1
            topic_filter = split_shared(full_filter)[1]
            action = Action("subscribe", options & QOS_MASK)
            if now.foresee(then, client, action, topic_filter).verdict is Verdict.DENY:
                has = now.authorization.look(client, action, topic_filter).verdict
                lost += has is not Verdict.DENY
        self._revoked += lost
        if lost and rules is not None:
            rules.clients += 1
