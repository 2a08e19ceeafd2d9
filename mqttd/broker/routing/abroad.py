"""What the other processes of a broker are told of this one: nobody, unless there are some.

    Router      filters that get a first subscriber, or lose their last    added, removed
    retainer    the last messages of topics                                retained, deleted
    Subscribing a SUBACK goes when the others know its filters             waits -> Taken.taken
                a user tells them of so many filters a second (`Pacer`)    begin, charge
    Publishing  an acknowledgement goes when they have the message         crossed
                nor does a plugin go on that waits for it              arrives -> Taken.taken
                one that cannot keep it now has said so                    cannot_keep
                who publishes elsewhere waits when one here has to         congested

Where there is one process nobody is told: each of these costs a comparison with None, none of them
on the way of a message that is not retained. `mqttd.mesh` is who listens.
"""

from __future__ import annotations

from collections.abc import Callable

from mqttd.session.channel.channel import Channel
from mqttd.session.routes.route import Route

__all__ = ["Abroad", "Pacer", "Taken", "Told"]


class Taken:
    """Somebody who waits until the others have taken what they were told."""

    def taken(self) -> None:
        """They have."""
        raise NotImplementedError

    def refused(self) -> None:
        """They cannot be told, and nobody waits for longer than this."""
        raise NotImplementedError

    def filters(self) -> list[str]:
        """What is waited for."""
        return []


class Told(Taken):
    """A call, when they have."""

    def __init__(self, told: Callable[[], object]) -> None:
        self.told = told

    def taken(self) -> None:
        """See `Taken.taken`."""
        self.told()


class Pacer:
    """How fast users may have the others told of filters."""

    def begin(self, channel: Channel, again: Callable[[], object]) -> bool:
        """Whether this client may add some now; else `again` is called when to look again."""
        raise NotImplementedError

    def charge(self, channel: Channel) -> None:
        """It has: what was added since."""
        raise NotImplementedError

    def waits(self) -> None:
        """A SUBSCRIBE does."""
        raise NotImplementedError


class Abroad:
    """The other processes."""

    def added(self, full_filter: str) -> None:
        """A subscription began."""
        raise NotImplementedError

    def removed(self, full_filter: str) -> None:
        """A subscription ended."""
        raise NotImplementedError

    def retained(self, topic: str, kept: object) -> None:
        """This (`mqttd.broker.retained.retained.Retained`) is the last message of a topic now."""
        raise NotImplementedError

    def deleted(self, topic: str, qos: int) -> None:
        """A topic has no last message any more; `qos`: see `Retainer.delete`."""
        raise NotImplementedError

    def waits(self, taken: Taken) -> bool:
        """Whether something told is not taken yet; then `taken` is called when it is."""
        raise NotImplementedError

    def arrives(self, taken: Taken) -> bool:
        """Whether messages are under way to others; then `taken` is called when these have them."""
        return False

    def lacks(self, full_filter: str) -> bool:
        """Whether the others have not taken this filter yet."""
        return False

    def cannot_keep(self, route: Route, first: int) -> bool:
        """Whether a message that begins with this byte would wait for a store of another."""
        return False

    def congested(self, on: bool) -> None:
        """Publishers are not read from here, or are again: so it is with those of others."""
