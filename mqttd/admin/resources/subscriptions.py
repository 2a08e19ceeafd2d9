"""Subscriptions and routes: who gets what; subscribe and unsubscribe a client."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct
from twisted.internet.defer import Deferred

from mqttd.admin.http.checks import checked_topic
from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ApiError
from mqttd.admin.http.route import Ask, delete, get, post
from mqttd.codec import reasons
from mqttd.codec.packets import Subscription
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_name
from mqttd.readmodel.pages import DEFAULT_LIMIT, BadWish, Limit
from mqttd.readmodel.routes import TopicRoutes
from mqttd.readmodel.subscriptions import FilterPage, SubscriptionPage

__all__ = ["Subscriptions"]


class Which(Struct, forbid_unknown_fields=True):
    """Whose subscriptions, or to what."""

    client_id: str | None = None
    topic_filter: str | None = None
    limit: Limit = DEFAULT_LIMIT
    cursor: str | None = None


class Page(Struct, forbid_unknown_fields=True):
    """A page of a list."""

    limit: Limit = DEFAULT_LIMIT
    cursor: str | None = None


class Wanted(Struct, forbid_unknown_fields=True):
    """A subscription on a client's behalf."""

    client_id: str
    topic_filter: str
    qos: Annotated[int, Meta(ge=0, le=2)] = 0


class One(Struct, forbid_unknown_fields=True):
    """One subscription."""

    client_id: str
    topic_filter: str


class Topic(Struct, forbid_unknown_fields=True):
    """A topic name."""

    topic: str


class Subscriptions:
    """Who has subscribed to what."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/subscriptions", query=Which, answer=SubscriptionPage)
    def page(self, ask: Ask) -> Any:
        """The subscriptions of one client, or a page of everybody's by client id."""
        which = ask.query
        found = self.parts.model.subscriptions
        if which.topic_filter is not None:
            checked_topic("topic_filter", which.topic_filter)
        if which.client_id is None:
            return found.page(which.limit, which.cursor, which.topic_filter)
        mine = found.of(which.client_id)
        if mine is None:
            raise ApiError(404, "not_found", f"no client {which.client_id!r}")
        if which.cursor is not None:
            raise BadWish("cursor: the subscriptions of one client are one page; leave it out")
        if which.topic_filter is not None:
            mine = [one for one in mine if one.topic_filter == which.topic_filter]
        return SubscriptionPage(mine, None)

    @post("/subscriptions", body=Wanted, answer=Wanted, errors=(409, 503))
    def subscribe(self, ask: Ask) -> Deferred[Wanted]:
        """Subscribe a client; its access rules are asked. 503 where others cannot be told of it."""
        wanted = ask.body
        checked_topic("topic_filter", wanted.topic_filter)
        told: Deferred[bool] = Deferred()
        try:
            code = self.parts.broker.subscribe_client(
                wanted.client_id, Subscription(wanted.topic_filter, wanted.qos), told.callback
            )
        except KeyError:
            raise ApiError(404, "not_found", f"no client {wanted.client_id!r}") from None
        except MqttError as error:
            raise ApiError(400, "bad_topic", error.detail) from None
        if code >= 0x80:
            raise ApiError(409, "refused", f"{wanted.topic_filter!r}: {reasons.name_of(code)}")
        granted = Wanted(wanted.client_id, wanted.topic_filter, code)

        def answer(taken: bool) -> Wanted:
            if not taken:
                text = f"{wanted.topic_filter!r}: the other nodes cannot be told; try again later"
                raise ApiError(503, "unavailable", text)
            ask.changed(None, granted)
            return granted

        return told.addCallback(answer)

    @delete("/subscriptions", query=One, answer=One)
    def unsubscribe(self, ask: Ask) -> One:
        """End one subscription of a client."""
        one = ask.query
        checked_topic("topic_filter", one.topic_filter)
        if not self.parts.broker.unsubscribe_client(one.client_id, one.topic_filter):
            text = f"client {one.client_id!r} has not subscribed to {one.topic_filter!r}"
            raise ApiError(404, "not_found", text)
        ask.changed(one)
        return One(one.client_id, one.topic_filter)

    @get("/topics", query=Page, answer=FilterPage)
    def topics(self, ask: Ask) -> Any:
        """A page of the filters that are subscribed to, with how often."""
        return self.parts.model.subscriptions.filters(ask.query.limit, ask.query.cursor)

    @get("/routes", query=Topic, answer=TopicRoutes)
    def routes(self, ask: Ask) -> TopicRoutes:
        """Where a message to a topic goes: the filters that match it, and who has subscribed."""
        most = self.parts.broker.settings.max_topic_levels
        topic = checked_topic("topic", ask.query.topic, lambda it: validate_topic_name(it, most))
        return self.parts.model.routes.of(topic)
