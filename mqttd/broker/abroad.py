"""What the other processes of a broker are told of this one: nobody, unless there are some.

    Router      filters that get a first subscriber, or lose their last    added, removed
    retainer    the last messages of topics                                retained, deleted
    Subscribing a SUBACK goes when the others know its filters             waits -> Taken.taken
    Publishing  an acknowledgement goes when they have the message         crossed
                one that cannot keep it now has said so                    cannot_keep

Where there is one process nobody is told: each of these costs a comparison with None, none of them
on the way of a message that is not retained. `mqttd.mesh` is who listens.
"""

from __future__ import annotations

from mqttd.session.route import Route

__all__ = ["Abroad", "Taken"]


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


class Abroad:
    """The other processes."""

    def added(self, full_filter: str) -> None:
        """A subscription began."""
        raise NotImplementedError

    def removed(self, full_filter: str) -> None:
        """A subscription ended."""
        raise NotImplementedError

    def retained(self, topic: str, kept: object) -> None:
        """This (`mqttd.broker.retained.Retained`) is the last message of a topic now."""
        raise NotImplementedError

    def deleted(self, topic: str) -> None:
        """A topic has no last message any more."""
        raise NotImplementedError

    def waits(self, taken: Taken) -> bool:
        """Whether something told is not taken yet; then `taken` is called when it is."""
        raise NotImplementedError

    def lacks(self, full_filter: str) -> bool:
        """Whether the others have not taken this filter yet."""
        return False

    def cannot_keep(self, route: Route, first: int) -> bool:
        """Whether a message that begins with this byte would wait for a store of another."""
        return False
