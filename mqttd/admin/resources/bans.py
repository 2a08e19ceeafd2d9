"""Bans: who must stay out, whatever it shows."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from twisted.internet.defer import Deferred

from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ApiError
from mqttd.admin.http.route import Ask, delete, get, post
from mqttd.admin.resources.telling import once_told
from mqttd.broker.rights.bans import BanError

__all__ = ["Bans"]

Kind = Literal["client_id", "username", "peerhost", "client"]


class BanView(Struct, kw_only=True):
    """One ban; times in seconds since 1970, `until` None for ever."""

    kind: Kind
    value: str
    reason: str
    until: float | None
    since: float


class BanList(Struct):
    """All bans that hold, the oldest first."""

    bans: list[BanView]


class Wanted(Struct, forbid_unknown_fields=True):
    """A ban to add."""

    kind: Kind
    value: str
    reason: Annotated[str, Meta(max_length=1000)] = ""
    seconds: Annotated[float, Meta(gt=0, lt=1e10)] | None = None


class Added(Struct):
    """A ban, and how many connections it has ended so far.

    unkept: why it is not stored yet and ends with the process; it holds all the same.
    untold: why other nodes have not heard of it yet.
    """

    ban: BanView
    ended: int
    unkept: str | None = None
    untold: str | None = None


class One(Struct, forbid_unknown_fields=True):
    """One ban."""

    kind: Kind
    value: str


class Lifted(Struct):
    """The ban that was lifted.

    unkept: why that is not stored yet, and a broker that is killed now has it again.
    untold: why other nodes have not heard of it yet.
    """

    lifted: One
    unkept: str | None = None
    untold: str | None = None


class Bans:
    """The bans of the broker."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/bans", answer=BanList)
    def list(self, ask: Ask) -> BanList:
        """All bans that hold."""
        return BanList([BanView(**asdict(ban)) for ban in self.parts.broker.bans.list()])

    @post("/bans", body=Wanted, answer=Added, errors=(507,))
    def add(self, ask: Ask) -> Deferred[Added]:
        """Ban a client id, a user or an address; its connections end."""
        broker, wanted = self.parts.broker, ask.body
        until = None if wanted.seconds is None else time.time() + wanted.seconds
        try:
            ban = broker.bans.add(wanted.kind, wanted.value, wanted.reason, until)
        except BanError as error:
            raise ApiError(400, "bad_request", str(error)) from None
        except OSError as error:
            raise self._not_stored("not made", error) from error
        view = BanView(**asdict(ban))
        ask.changed(None, view)
        return self._kept(Added(view, broker.enforce_bans()))

    @delete("/bans", query=One, answer=Lifted, errors=(507,))
    def lift(self, ask: Ask) -> Deferred[Lifted]:
        """Lift a ban."""
        one = ask.query
        try:
            found = self.parts.broker.bans.remove(one.kind, one.value)
        except BanError as error:
            raise ApiError(400, "bad_request", str(error)) from None
        except OSError as error:
            raise self._not_stored("not lifted", error) from error
        if not found:
            raise ApiError(404, "not_found", f"no ban of {one.kind} {one.value!r}")
        ask.changed(one)
        return self._kept(Lifted(one))

    def _kept(self, answer: Added | Lifted) -> Deferred[Any]:
        """The answer, which says where the change does not outlast the process yet."""

        def unkept(why: str) -> None:
            answer.unkept = why

        return once_told(self.parts.broker.bans, answer, unkept)

    def _not_stored(self, what: str, error: OSError) -> ApiError:
        bans = self.parts.broker.bans
        why = f"{bans.path}: {error.strerror}" if bans.drawer is None else error.strerror
        return ApiError(507, "not_stored", f"the ban is {what}, since it cannot be kept: {why}")
