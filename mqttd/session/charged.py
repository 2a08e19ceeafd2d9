"""A session that is charged for what it keeps: to itself, its user and the node.

    charge(size)  -->  weight (this session)  -->  purse (its user)
                       the caller adds it to the node's account, by kind

What is in flight is charged to the node message by message, and to the user where there is a limit
for users (`fly`); what it weighs for one session is counted when somebody asks. The sums are in
`mqttd.session.ground.account`.
"""

from __future__ import annotations

from mqttd.session.ground.account import INFLIGHT, QUEUED, SESSION, Account, Purse
from mqttd.session.ground.message import RELEASED, Message, entry_weight
from mqttd.session.routes.receiver import Receiver

__all__ = ["Charged", "flight_weight"]


class Charged(Receiver):
    """What a session weighs."""

    __slots__ = ("account", "inflight", "purse", "rows", "weight")

    def __init__(self, client_id: str, account: Account, username: str | None) -> None:
        super().__init__(client_id)
        self.account = account
        self.inflight: dict[int, object] | None = None
        #: What is charged to this session: all but what is in flight.
        self.weight: int = 0
        #: What it, its subscriptions and its will take in a journal.
        self.rows: int = 0
        self.purse: Purse | None = account.purse(username)
        base = _base(client_id, username)
        self.weight = base
        account.sessions += base
        purse = self.purse
        if purse is not None:
            purse.sessions += 1
            purse.bytes += base

    @property
    def username(self) -> str | None:
        """The principal: only the same user may resume or take over this session."""
        purse = self.purse
        return None if purse is None else purse.name

    def charge(self, size: int) -> None:
        """So many bytes more are held, or less; the caller tells the account of which kind."""
        self.weight += size
        purse = self.purse
        if purse is not None:
            purse.bytes += size

    def has_room(self, size: int) -> bool:
        """Whether this session and its user may hold so many bytes more."""
        account = self.account
        if account.per_session and self.weight + size > account.per_session:
            return False
        purse = self.purse
        if not account.per_user or purse is None:
            return True
        return purse.bytes + purse.flying + size <= account.per_user

    def may_keep(self, size: int) -> bool:
        """Whether so many bytes more of its user's may be in the journal; they are counted."""
        most = self.account.most_kept
        if most < 0:
            return True
        purse = self.purse
        if purse is None:
            purse = self.account.nobody
        if purse.kept + size > most:
            return False
        purse.kept += size
        return True

    def enter_rows(self, size: int) -> None:
        """So many bytes more of this session are rows of a journal, or less."""
        if self.rows + size < 0:
            size = -self.rows
        self.rows += size
        self.account.rows += size

    def fly(self, size: int) -> None:
        """So many bytes more are in flight, or less."""
        account = self.account
        account.inflight += size
        if account.per_user:
            purse = self.purse
            if purse is not None:
                purse.flying += size

    def flying(self) -> int:
        """What is in flight to the client weighs so much."""
        weight = 0
        if self.inflight is not None:
            for entry in self.inflight.values():
                weight += flight_weight(entry)
        return weight

    def _weigh_queue(self, size: int, before: int) -> None:
        self.account.queued += size - before
        self.charge(size - before)

    def _weigh_will(self, will: Message | None, before: Message | None) -> None:
        weight = (0 if will is None else will.weight()) - (0 if before is None else before.weight())
        self.account.wills += weight
        self.charge(weight)

    def _close_account(self) -> None:
        """The session has ended; what it still gives back is charged as before."""
        base = _base(self.client_id, self.username)
        self.enter_rows(-self.rows)
        self.account.sessions -= base
        self.charge(-base)
        purse = self.purse
        if purse is not None:
            purse.sessions -= 1
            self.account.close(purse)


def _base(client_id: str, username: str | None) -> int:
    return SESSION + len(client_id) + (0 if username is None else len(username))


def flight_weight(entry: object) -> int:
    """The bytes that an entry is counted with in flight."""
    if entry is RELEASED:
        return INFLIGHT
    return INFLIGHT - QUEUED + entry_weight(entry)
