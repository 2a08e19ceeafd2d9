"""How fast a user may have filters written to etcd, by their bytes.

    SUBSCRIBE --> begin --> filters that were not there yet --> charge: twice what they weigh
        '-- more than `_BURST` of debt: it waits, and its client is not read from meanwhile

etcd keeps what was written in memory until it has 100,000 entries, and on its disk: two clients
that subscribed to long filters and unsubscribed again made that 0.9 GB in half a minute. Written
they are twice, when they come and when they go; so that is charged when they come, and going is
free. Whose it is, as of wills: a user's, or that of an address (`house_of`) where there is no name.

Promise: a user waits for itself alone. Filters that come with sessions, from a store or from other
nodes, are nobody's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mqttd.broker.routing.abroad import Pacer
from mqttd.cluster.etcd.pace import Pace
from mqttd.net.fair import house_of
from mqttd.session.channel.channel import Channel

__all__ = ["FilterPace"]

#: Bytes a second of one user, and at once: 300,000 filters of 50 bytes that all come anew.
_RATE: Final = 1 << 20
_BURST: Final = 32 << 20
#: Seconds before it is looked again at most: the client may be gone.
_LOOK: Final = 2.0


class FilterPace(Pacer):
    """That of one node."""

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self.pace = Pace(_RATE, _BURST)
        self._weight = 0

    def added(self, full_filter: str) -> None:
        """This one is to be written."""
        self._weight += 2 * len(full_filter.encode())

    def begin(self, channel: Channel, again: Callable[[], object]) -> bool:
        """See `Pacer.begin`."""
        self._weight = 0
        wait = self.pace.wait(_whose(channel), self.reactor.seconds())
        if not wait:
            return True
        self.reactor.callLater(min(wait, _LOOK), again)
        return False

    def charge(self, channel: Channel) -> None:
        """See `Pacer.charge`."""
        if self._weight:
            self.pace.charge(_whose(channel), self._weight, self.reactor.seconds())
            self._weight = 0

    def waits(self) -> None:
        """See `Pacer.waits`."""
        self.pace.refused += 1


def _whose(channel: Channel) -> tuple[str | None, str]:
    session = channel.session
    if session is not None and session.username is not None:
        return session.username, ""
    return None, house_of(channel.edge.peer(channel)[0])
