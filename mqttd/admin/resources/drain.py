"""Taking a node out of service: its clients go elsewhere at a rate, then it ends."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ADMINISTRATOR, ApiError
from mqttd.admin.http.route import Ask, delete, get, post

__all__ = ["DrainResource", "check_reference"]

_SERVER: Final = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_REFERENCE: Final = re.compile(rf"(?:{_SERVER}(?: {_SERVER})*)?")


class DrainView(Struct, kw_only=True):
    """How far it is."""

    draining: bool
    #: Clients a second.
    rate: float
    to: str
    #: The process ends when nobody is left.
    exit: bool
    #: Clients that were sent away, and those that are still there.
    ended: int
    left: int


class Wanted(Struct, forbid_unknown_fields=True):
    """How it is to be done; `to` is the Server Reference: a host or `host:port`, or several."""

    rate: Annotated[float, Meta(gt=0, le=1_000_000)] = 100.0
    to: Annotated[str, Meta(max_length=1000)] = ""
    #: 0x9D, server moved, in the place of 0x9C.
    moved: bool = False
    #: End the process when nobody is left.
    exit: bool = True


def check_reference(to: str) -> None:
    """Raises ApiError for what is no Server Reference: clients would be sent there (5.0, 4.11)."""
    if not _REFERENCE.fullmatch(to):
        text = f"to = {to[:80]!r}: expected HOST or HOST:PORT, or several with a space between them"
        raise ApiError(400, "bad_request", text)


class DrainResource:
    """The draining of this node."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/drain", answer=DrainView)
    def show(self, ask: Ask) -> DrainView:
        """Whether this node is being drained, and how far that is."""
        return self._view()

    @post("/drain", role=ADMINISTRATOR, body=Wanted, answer=DrainView)
    def begin(self, ask: Ask) -> DrainView:
        """Let nobody in, send clients elsewhere at a rate, then end the process."""
        drain, wanted = self._drain(), ask.body
        check_reference(wanted.to)
        drain.begin(wanted.rate, wanted.to, wanted.moved)
        self.parts.exit_when_drained = wanted.exit
        ask.changed(None, wanted)
        return self._view()

    @delete("/drain", role=ADMINISTRATOR, answer=DrainView)
    def cancel(self, ask: Ask) -> DrainView:
        """Let clients in again."""
        if not self._drain().cancel():
            raise ApiError(404, "not_found", "this node is not being drained")
        return self._view()

    def _drain(self) -> Any:
        return self.parts.need(self.parts.drain, "nothing can be drained")

    def _view(self) -> DrainView:
        drain = self._drain()
        return DrainView(
            draining=drain.running, rate=drain.rate, to=drain.reference, ended=drain.ended,
            left=drain.left, exit=self.parts.exit_when_drained,
        )  # fmt: skip
