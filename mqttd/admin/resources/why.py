"""What became of a message, and whose messages are followed from hand to hand."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from twisted.internet.defer import Deferred

from mqttd.admin.http.checks import checked_topic
from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ApiError
from mqttd.admin.http.route import Ask, delete, get, post
from mqttd.readmodel.why import REASONS, Life, Lives

__all__ = ["Whys"]

Id = Annotated[str, Meta(pattern="^[0-9a-fA-F]{32}$")]
Kind = Literal["client", "topic"]
_NONE = "what becomes of messages is not kept (trace.ring)"


class Wish(Struct, forbid_unknown_fields=True):
    """Which messages."""

    client_id: Annotated[str, Meta(description="its publisher, or one of its receivers")] | None = (
        None
    )
    topic: Annotated[str, Meta(min_length=1, description="a topic, or a filter")] | None = None
    since: Annotated[float, Meta(ge=0, lt=1e10, description="seconds since 1970")] | None = None
    reason: Annotated[str, Meta(description="why it was lost, such as queue_full")] | None = None
    lost: Annotated[bool, Meta(description="only those that were lost, for all or some")] = False
    limit: Annotated[int, Meta(ge=1, le=200, description="messages of a page")] = 50
    cursor: Id | None = None


class Whom(Struct, forbid_unknown_fields=True):
    """Whose messages: of a client, or to the topics of a filter."""

    kind: Kind
    value: Annotated[str, Meta(min_length=1)]


class Follow(Struct, forbid_unknown_fields=True):
    """Whose messages are followed, and for how many seconds; for ever without."""

    kind: Kind
    value: Annotated[str, Meta(min_length=1, max_length=65535)]
    seconds: Annotated[float, Meta(gt=0, lt=1e10)] | None = None


class TracedView(Struct, kw_only=True):
    """A client or a topic filter whose messages are followed; `until` in s since 1970."""

    kind: Kind
    value: str
    until: float | None
    configured: bool


class Following(Struct, kw_only=True):
    """Whose messages are followed, and the share of all others that is."""

    traced: list[TracedView]
    sample: float


class Ended(Struct):
    """Whose messages are followed no more."""

    ended: Whom


class Whys:
    """What is kept of messages."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/why", query=Wish, answer=Lives)
    def find(self, ask: Ask) -> Deferred[Lives]:
        """What became of messages: of lost ones, and of those that were followed."""
        wish, trail = ask.query, self._trail()
        if wish.reason is not None and wish.reason not in REASONS:
            known = ", ".join(REASONS)
            text = f"reason = {wish.reason[:80]!r}: expected one of {known}"
            raise ApiError(400, "bad_request", text)
        if wish.topic is not None:
            checked_topic("topic", wish.topic)
        return self.parts.in_thread(
            trail.why.find, wish.client_id, wish.topic, wish.since, wish.reason, wish.lost,
            wish.limit, wish.cursor.lower() if wish.cursor else None,
        )  # fmt: skip

    @get("/why/{message_id}", answer=Life)
    def life(self, ask: Ask) -> Deferred[Life]:
        """What became of one message, named by its id: 32 hexadecimal digits."""
        message_id = ask.path["message_id"]
        found = self.parts.in_thread(self._trail().why.life, message_id)
        return found.addCallback(lambda life: self._known(life, message_id))

    @get("/trace", answer=Following)
    def traced(self, ask: Ask) -> Following:
        """Whose messages are followed."""
        trail = self._trail()
        return Following(traced=[_view(one) for one in trail.traced.values()], sample=trail.sampled)

    @post("/trace", body=Follow, answer=TracedView)
    def trace(self, ask: Ask) -> TracedView:
        """Follow the messages of a client, or to the topics of a filter, for a while."""
        wanted = ask.body
        if wanted.kind == "topic":
            checked_topic("value", wanted.value)
        made = _view(self._trail().trace(wanted.kind, wanted.value, wanted.seconds))
        ask.changed(None, made)
        return made

    @delete("/trace", query=Whom, answer=Ended)
    def untrace(self, ask: Ask) -> Ended:
        """Follow the messages of a client, or to these topics, no more."""
        one = ask.query
        if one.kind == "topic":
            checked_topic("value", one.value)
        if not self._trail().untrace(one.kind, one.value):
            raise ApiError(404, "not_found", f"{one.kind} {one.value!r} is not followed")
        ask.changed(one)
        return Ended(one)

    def _trail(self) -> Any:
        return self.parts.need(self.parts.trail, _NONE)

    def _known(self, life: Life | None, message_id: str) -> Life:
        if life is None:
            text = f"nothing is kept of a message {message_id[:80]!r}"
            raise ApiError(404, "not_found", text)
        return life


def _view(one: Any) -> TracedView:
    return TracedView(kind=one.kind, value=one.value, until=one.until, configured=one.configured)
