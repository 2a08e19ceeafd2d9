"""Clients and their sessions: listed, shown, ended. A client is one session, connected or away."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct

from mqttd.admin.http.checks import checked_listener, checked_topic
from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ApiError
from mqttd.admin.http.route import Ask, delete, get
from mqttd.codec import reasons
from mqttd.readmodel.clients import ClientPage, ClientView, Wish

__all__ = ["Clients"]


class Kick(Struct, forbid_unknown_fields=True):
    """How a connection is ended."""

    reason_code: Annotated[
        str, Meta(description="a code of DISCONNECT from 0x80, such as 0x98", max_length=8)
    ] = "0x98"
    discard: Annotated[bool, Meta(description="end the session, too")] = False


class End(Struct, forbid_unknown_fields=True):
    """How a session is ended."""

    reason_code: Annotated[
        str, Meta(description="a code of DISCONNECT from 0x80, such as 0x98", max_length=8)
    ] = "0x98"


class Kicked(Struct, omit_defaults=True):
    """What was ended: the connection, or the session with it."""

    kicked: str | None = None
    ended: str | None = None


class Ended(Struct):
    """The client id whose session was ended."""

    ended: str


def _without_places(page: ClientPage) -> ClientPage:
    page.places = UNSET
    return page


class Clients:
    """The clients of the broker."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/clients", query=Wish, answer=ClientPage)
    def page(self, ask: Ask) -> Any:
        """A page of the clients that fit; `cursor` of the answer asks for the next one."""
        return self._page(ask)

    @get("/clients/{client_id}", answer=ClientView)
    def one(self, ask: Ask) -> ClientView:
        """One client."""
        return self._client(ask)

    @delete("/clients/{client_id}", query=Kick, answer=Kicked, errors=(409,))
    def kick(self, ask: Ask) -> Kicked:
        """End a client's connection, with `discard` its session too."""
        code = reason_code_of(ask.query.reason_code)
        client = self._client(ask)
        ask.changed(client)
        if ask.query.discard:
            self.parts.broker.end_session(client.client_id, code)
            return Kicked(ended=client.client_id)
        if not self.parts.broker.kick(client.client_id, code):
            raise ApiError(409, "not_connected", f"client {client.client_id!r} is not connected")
        return Kicked(kicked=client.client_id)

    @get("/sessions", query=Wish, answer=ClientPage)
    def sessions(self, ask: Ask) -> Any:
        """A page of sessions: those of clients that are here, and of those that are away."""
        return self._page(ask)

    @get("/sessions/{client_id}", answer=ClientView)
    def session(self, ask: Ask) -> ClientView:
        """One session."""
        return self._client(ask)

    @delete("/sessions/{client_id}", query=End, answer=Ended)
    def end(self, ask: Ask) -> Ended:
        """End a session with all that is kept for it, and the connection if there is one."""
        code = reason_code_of(ask.query.reason_code)
        client = self._client(ask)
        ask.changed(client)
        self.parts.broker.end_session(client.client_id, code)
        return Ended(client.client_id)

    def _page(self, ask: Ask) -> Any:
        wish: Wish = ask.query
        if wish.subscription is not None:
            checked_topic("subscription", wish.subscription)
        if wish.listener is not None:
            checked_listener("listener", wish.listener, self.parts.listeners())
        page = self.parts.model.clients.page(wish)
        return page if ask.together else page.addCallback(_without_places)

    def _client(self, ask: Ask) -> ClientView:
        client_id = ask.path["client_id"]
        client = self.parts.model.clients.get(client_id)
        if client is None:
            raise ApiError(404, "not_found", f"no client {client_id!r}")
        return client


def reason_code_of(text: str) -> int:
    """The reason code of DISCONNECT that was asked for; raises ApiError."""
    try:
        code = int(text, 0)
    except ValueError:
        code = 0
    if code < 0x80 or code not in reasons.CODES_OF[14]:
        raise ApiError(
            400,
            "bad_request",
            f"reason_code = {text!r}: expected a code of DISCONNECT from 0x80, such as 0x98",
        )
    return code
