"""A node with which the others do not count: etcd does not answer it, or it was put out.

no answer for a whole lease        --> `minority`    --.
`all/out/<node>`: it was put out   --> `put_out`     --+--> an alarm, until it is a member again
etcd has forgotten what it had     --> `etcd_older`  --'--> `minority = "refuse"`: all sent away

The last ends with the process alone: by the revisions of such an etcd nobody can tell any more
which of two sessions is the newer one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from mqttd.broker.broker import Broker
from mqttd.cluster.sessions.owners import Owners
from mqttd.codec.reasons import USE_ANOTHER_SERVER
from mqttd.config.schema import Cluster as Settings
from mqttd.session.channel.channel import Channel

__all__ = ["MINORITY", "OLDER", "PUT_OUT", "Apart"]

#: What `state` is, and with "cluster_" before it the alarm.
MINORITY: Final = "minority"
PUT_OUT: Final = "put_out"
OLDER: Final = "etcd_older"
#: In words.
_SAID: Final = {
    "": "",
    MINORITY: "in a minority of its cluster",
    PUT_OUT: "put out of its cluster",
    OLDER: "out of its cluster, whose etcd is older than it was",
}
#: What clients notice, as `cluster.minority` is.
_NOTICED: Final = {
    "serve": "clients that are here stay, others are let in only if their session is here, and"
    " filters that are new here are refused",
    "refuse": "all its clients are sent away, and nobody is let in",
}


class Apart:
    """Whether the node of `broker` is such a one: `state`, empty where it is not."""

    def __init__(self, settings: Settings, broker: Broker, owners: Owners) -> None:
        self.settings = settings
        self.broker = broker
        self.owners = owners
        self.log = Logger(namespace="mqttd.cluster")
        self.state = ""
        #: See `Unlinked.alone`.
        self.alone: Callable[[], str] = str
        owners.apart = lambda: f"this node is {self.said}" if self.state == PUT_OUT else ""

    @property
    def said(self) -> str:
        """How it is one; empty where it is not."""
        return _SAID[self.state]

    @property
    def refuses(self) -> bool:
        """Whether nobody is let in at such a node."""
        return self.settings.minority == "refuse"

    def hinders(self) -> str:
        """Why nobody is to be sent to this node; empty where nothing is against it."""
        return self.said if self.state and self.refuses else self.alone()

    def begin(self, state: str, why: str = "") -> None:
        """It is, for this reason; who is put out is that, whether etcd answers or not."""
        if self.state in (state, PUT_OUT, OLDER) and state != OLDER:
            return
        first = not self.state
        self._clear()
        self.state = state
        text = (
            "this node was put out of the cluster: `mqttd-ctl cluster join` here has it in again"
            if state == PUT_OUT
            else why or f"etcd has not answered for {self.settings.lease} s"
        )
        if state == OLDER:
            text += ": stop all nodes, then start all"
        text += "; other nodes do not count with this one"
        text += f": {_NOTICED[self.settings.minority]} (minority = {self.settings.minority!r})"
        self.log.critical("{text}", text=text)
        self.broker.alarms.activate(f"cluster_{state}", text)
        if first and self.refuses:
            self._refuse()

    def end(self) -> None:
        """It is a member again."""
        text = (
            "this node is in the cluster again" if self.state == PUT_OUT else "etcd answers again"
        )
        self._clear()
        self.log.info("{text}: this node is a member", text=text)

    def _clear(self) -> None:
        if self.state:
            self.broker.alarms.clear(f"cluster_{self.state}")
            self.state = ""

    def _refuse(self) -> None:
        self.owners.strict = True
        self.owners.lease = 0
        for session in list(self.broker.sessions.values()):
            channel = self.broker.channel_of(session)
            if isinstance(channel, Channel):
                channel.close(USE_ANOTHER_SERVER, "this node is in a minority")
        self.broker.perform_later()
