"""Messages that somebody keeps as bytes: an event log, a journal, another node.

    PUBLISH --> route with the gear NOTED --> note(parts of the packet) --> whoever keeps them
    a delivery, or its acknowledgement -----> note_deliveries ----------->  and has asked for these
    what one receiver misses ---------------> note_dropped -------------->
    what reaches nobody --------------------> note_unheard -------------->
    what a client may not do ---------------> note_denied --------------->

A note is one call for one packet or a run of packets, with their places in the bytes received;
no `Message` is made. What reaches the broker another way (a will, a hook's own message) comes as a
`Message`, once. Both say the same of a message (tests/unit/pipeline/test_notes.py).

Promise: a message costs its keeper's own appends, and nothing waits.
"""

from __future__ import annotations

from mqttd.session.ground.message import Message
from mqttd.session.ground.runs import Run

__all__ = ["Notes"]


class Notes:
    """Somebody who keeps messages; told before their receivers are."""

    def note(
        self,
        run: Run,
        client_id: str,
        username: str | None,
        data: bytes,
        block: bytes,
        body: int,
        end: int,
        size: int,
    ) -> None:
        """Packets of `size` bytes each in `data`, the first with its payload from `body` to `end`.

        `run` says what they are; it came when its ids say. `block`: their properties as on the
        wire, empty for none.
        """
        raise NotImplementedError

    def note_message(self, message: Message, now: int) -> None:
        """One message that did not come as bytes, or that somebody has changed.

        `now` is the server's, in milliseconds: from there its expiry counts.
        """
        raise NotImplementedError

    def note_deliveries(
        self, acked: bool, at: int, client_id: str, username: str | None, runs: list[Run]
    ) -> None:
        """These messages were written to this client, or it has acknowledged them, in this order.

        `at`: the end of the turn in which that was, in µs since 1970. Those who were sent the same
        in this turn are told with one and the same list.
        """
        raise NotImplementedError

    def note_dropped(
        self, at: int, client_id: str, username: str | None, run: Run, reason: str
    ) -> None:
        """This client misses a message, of which there are more receivers or none; told at once.

        `at`: when, in µs since 1970; `reason` as of the hook ``delivery.dropped``.
        """
        raise NotImplementedError

    def note_unheard(
        self, at: int, client_id: str, username: str | None, runs: list[Run], reason: str
    ) -> None:
        """These messages of this client have reached nobody.

        `at`: when, or the end of that turn, in µs since 1970; `reason` as of the hook
        ``message.dropped``.
        """
        raise NotImplementedError

    def note_denied(
        self,
        at: int,
        client_id: str,
        username: str | None,
        peer: tuple[str, int],
        runs: list[Run],
        kind: str,
    ) -> None:
        """This client may not do that: ``publish`` these messages, ``subscribe`` to these filters.

        `at`: when, or the end of that turn, in µs since 1970; `peer`: its address and port; `kind`
        as of the action of the hook ``client.denied``. The ids and sizes of the runs say nothing.
        """
        raise NotImplementedError
