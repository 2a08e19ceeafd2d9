"""Clients as operators see them: one, a page of those that fit, what one of them holds.

    Wish (filters, sort, cursor) --> ids in order, slice by slice --> ClientView of those that fit

A client is one session, whether it is connected or away.

Promise: a page by client id costs what it shows (50 among 200,000: below a millisecond); filters
and other orders look at more, a slice of half a millisecond a turn (`mqttd.readmodel.slices`).
Looking at a client keeps nothing of it in memory.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from twisted.internet.defer import Deferred

from mqttd.broker.broker import Broker
from mqttd.codec.topic import split_shared
from mqttd.readmodel.pages import DEFAULT_LIMIT, BadWish, Limit, read_cursor, write_cursor
from mqttd.readmodel.slices import Run, Slice, in_slices
from mqttd.session.channel.channel import Channel
from mqttd.session.ground.settings import NEVER
from mqttd.session.routes.route import QOS_MASK
from mqttd.session.session import Session
from mqttd.types import ClientInfo

__all__ = ["SORTS", "ClientPage", "ClientView", "Clients", "Wish"]

#: Ids that are fetched at once; topics of one client's publications that are told.
_FETCHED: Final = 64
#: Clients that are shown between two looks at the clock.
_VIEWED: Final = 16
_MOST_TOPICS: Final = 100


class ClientView(Struct, kw_only=True):
    """One client; durations in seconds, times in seconds since 1970.

    What came and went is counted since the connection began, what was dropped since the session.
    """

    client_id: str
    username: str | None
    connected: bool
    peerhost: str
    peerport: int
    listener: str
    mountpoint: str
    protocol_version: int | None
    superuser: bool
    keep_alive: int
    session_age: int
    away: int
    session_expiry_interval: int | Literal["never"]
    will: str | None
    subscriptions: int
    inflight: int
    awaiting_rel: int
    mqueue: int
    mqueue_bytes: int
    unsent_bytes: int
    idle: int | None
    connected_at: int | None
    clean_start: bool | None
    last_reason: str | None
    messages_received: int
    messages_dropped: int
    bytes_received: int
    bytes_sent: int


class ClientPage(Struct):
    """A page of clients; with `cursor` the next one is asked for."""

    clients: list[ClientView]
    cursor: str | None
    #: Sort key of each, for who joins the pages of several workers.
    places: dict[str, Any] | UnsetType = UNSET


class Wish(Struct, kw_only=True, forbid_unknown_fields=True):
    """What clients are wanted, in which order, from where on."""

    username: Annotated[str | None, Meta(description="user name")] = None
    address: Annotated[str | None, Meta(description="an address or a network")] = None
    listener: Annotated[str | None, Meta(description="KIND:NAME")] = None
    state: Literal["connected", "away"] | None = None
    prefix: Annotated[str | None, Meta(description="what the client id begins with")] = None
    subscription: Annotated[
        str | None, Meta(description="a filter it has subscribed to, in just these words")
    ] = None
    sort: Annotated[
        str, Meta(description="client_id or another figure of it, -NAME for the other way round")
    ] = "client_id"
    limit: Limit = DEFAULT_LIMIT
    cursor: str | None = None


Fits = Callable[[Session], bool]


class Clients:
    """The clients of one broker; `run` works an iterator off."""

    def __init__(self, broker: Broker, run: Run = in_slices) -> None:
        self.broker = broker
        self.run = run
        #: Milliseconds to add to moments of the broker's clock, where others are asked, too, whose
        #: clocks are no better than the time of day.
        self.clock = 0

    # -- one -----------------------------------------------------------------------------------

    def get(self, client_id: str) -> ClientView | None:
        """One client, None if there is none of that id."""
        session = self.broker.sessions.get(client_id)
        return self._view(session) if session is not None else None

    def info(self, client_id: str) -> ClientInfo | None:
        """Who a client is, for access rules."""
        session = self.broker.sessions.get(client_id)
        return self.broker.client_of(session) if session is not None else None

    def ids(self) -> Iterator[str]:
        """All client ids in order; they may come and go meanwhile."""
        last: str | None = None
        while found := self.broker.registry.directory.after(last, _FETCHED):
            yield from found
            last = found[-1]

    def held(self, client_id: str) -> tuple[ClientInfo, list[tuple[str, int]], list[str]] | None:
        """A client, its subscriptions by their real filters with their QoS, the topics it uses."""
        session = self.broker.sessions.get(client_id)
        if session is None:
            return None
        subscriptions = [
            (split_shared(full_filter)[1], options & QOS_MASK)
            for full_filter, options in (session.subscriptions or {}).items()
        ]
        channel = self.broker.channel_of(session)
        topics = channel.topics(_MOST_TOPICS) if channel is not None else []
        return self.broker.client_of(session), subscriptions, topics

    # -- many ----------------------------------------------------------------------------------

    def page(self, wish: Wish) -> Deferred[ClientPage]:
        """A page of those that fit. Raises BadWish."""
        name = wish.sort.removeprefix("-")
        if name not in SORTS:
            raise BadWish(
                f"sort = {wish.sort[:80]!r}: expected one of {', '.join(SORTS)}, or -NAME"
            )
        found: list[tuple[Any, str]] = []
        fits = self._fits(wish)
        backwards = wish.sort.startswith("-")
        if name == "client_id":
            work = self._by_id(wish, fits, backwards, found)
        else:
            work = self._by_key(wish, fits, self._key(name), backwards, found)
        views: list[ClientView] = []
        return self.run(self._seen(work, wish, found, views)).addCallback(
            lambda _: ClientPage(
                views,
                _cursor(wish, found),
                {client_id: key for key, client_id in found[: wish.limit]},
            )
        )

    def _seen(
        self,
        work: Iterator[None],
        wish: Wish,
        found: list[tuple[Any, str]],
        views: list[ClientView],
    ) -> Iterator[None]:
        """Find them, then look at each of the page."""
        yield from work
        slice_ = Slice()
        for number, (_, client_id) in enumerate(found[: wish.limit], 1):
            view = self.get(client_id)
            if view is not None:
                views.append(view)
            if number % _VIEWED == 0 and slice_.over():
                yield
                slice_.begin()

    def _by_id(
        self, wish: Wish, fits: Fits, backwards: bool, found: list[tuple[Any, str]]
    ) -> Iterator[None]:
        directory, sessions = self.broker.registry.directory, self.broker.sessions
        place = read_cursor(wish.cursor)
        last = place[1] if place is not None else None
        prefix = wish.prefix or ""
        inclusive = False
        if prefix and not backwards and (last is None or last < prefix):
            last, inclusive = prefix, True
        slice_ = Slice()
        while True:
            if backwards:
                ids = directory.before(last, _FETCHED)
            else:
                ids = directory.after(last, _FETCHED, inclusive)
            inclusive = False
            for client_id in ids:
                if prefix and not client_id.startswith(prefix):
                    if backwards and client_id > prefix:
                        continue
                    return
                if fits(sessions[client_id]):
                    found.append(("", client_id))
                    if len(found) > wish.limit:
                        return
            if not ids:
                return
            last = ids[-1]
            if slice_.over():
                yield
                slice_.begin()

    def _key(self, name: str) -> Callable[[Session], Any]:
        """What a list is sorted by; moments by a clock that all who are asked have."""
        key, clock = SORTS[name], self.clock
        if not clock or name not in _MOMENTS:
            return key

        def moment(session: Session) -> int:
            found: int = key(session)
            return found if found == _NEVER else found - clock

        return moment

    def _by_key(
        self,
        wish: Wish,
        fits: Fits,
        key: Callable[[Session], Any],
        backwards: bool,
        found: list[tuple[Any, str]],
    ) -> Iterator[None]:
        """Keeps the best of a page and as many more, of all that there are."""
        sessions = self.broker.sessions
        kind = str if key is _username else int
        place = read_cursor(wish.cursor, kind)
        slice_ = Slice()
        bound: tuple[Any, str] | None = None
        most = wish.limit + 1
        for number, client_id in enumerate(self.ids(), 1):
            session = sessions.get(client_id)
            if session is not None and fits(session):
                entry = (key(session), client_id)
                behind = place is None or (entry < place if backwards else entry > place)
                ahead = bound is None or (entry > bound if backwards else entry < bound)
                if behind and ahead:
                    found.append(entry)
                    if len(found) >= 2 * most:
                        found.sort(reverse=backwards)
                        del found[most:]
                        bound = found[-1]
            if number % _FETCHED == 0 and slice_.over():
                yield
                slice_.begin()
        found.sort(reverse=backwards)
        del found[most:]

    def _fits(self, wish: Wish) -> Fits:
        """What says whether a session is wanted."""
        network = None
        if wish.address is not None:
            try:
                network = ipaddress.ip_network(wish.address, strict=False)
            except ValueError:
                raise BadWish(
                    f"address = {wish.address[:80]!r}: expected an address or a network"
                ) from None
        username, listener, subscription = wish.username, wish.listener, wish.subscription
        prefix = wish.prefix or ""
        connected = wish.state == "connected"

        def fits(session: Session) -> bool:
            if prefix and not session.client_id.startswith(prefix):
                return False
            if username is not None and session.username != username:
                return False
            if wish.state is not None and (session.channel is not None) != connected:
                return False
            if subscription is not None and session.options_of(subscription) < 0:
                return False
            if listener is not None and _listener_of(session) != listener:
                return False
            return network is None or _is_within(_peer_of(session)[0], network)

        return fits

    def _view(self, session: Session) -> ClientView:
        broker = self.broker
        now = broker.now
        channel = broker.channel_of(session)
        queue = session.mqueue
        expiry = session.expiry_interval
        host, port, keep_alive = "", 0, 0
        known = _known(session)
        connected_at, clean_start = None, None
        if channel is not None:
            host, port = _peer_of(session)
            connected_at = round(time.time() - (now - channel.since) / 1000)
            clean_start = known.clean_start if known is not None else session.clean
            keep_alive = round(channel.keepalive / 1000 / broker.settings.keepalive_multiplier)
        return ClientView(
            client_id=session.client_id,
            username=session.username,
            connected=channel is not None,
            peerhost=host,
            peerport=port,
            listener=channel.listener if channel is not None else "",
            mountpoint=known.mountpoint if known is not None else "",
            protocol_version=channel.version if channel is not None else None,
            superuser=known is not None and known.superuser,
            keep_alive=keep_alive,
            session_age=(now - session.created_at) // 1000,
            away=(now - session.away_since) // 1000 if channel is None else 0,
            session_expiry_interval="never" if expiry == NEVER else expiry,
            will=session.will.topic if session.will is not None else None,
            subscriptions=session.subscribed(),
            inflight=len(session.inflight or ()),
            awaiting_rel=len(session.awaiting_rel or ()),
            mqueue=queue.length if queue is not None else 0,
            mqueue_bytes=queue.size if queue is not None else 0,
            unsent_bytes=channel.out_bytes if channel is not None else 0,
            idle=(now - channel.last) // 1000 if channel is not None else None,
            connected_at=connected_at,
            clean_start=clean_start,
            last_reason=session.last_reason or None,
            messages_received=channel.taken() if channel is not None else 0,
            messages_dropped=session.dropped,
            bytes_received=channel.bytes_received if channel is not None else 0,
            bytes_sent=channel.bytes_sent if channel is not None else 0,
        )


def _cursor(wish: Wish, found: list[tuple[Any, str]]) -> str | None:
    return write_cursor(*found[wish.limit - 1]) if len(found) > wish.limit else None


def _known(session: Session) -> ClientInfo | None:
    """What is kept of a client; nothing is made for it, as `Broker.client_of` would."""
    if isinstance(session.client, ClientInfo):
        return session.client
    channel = session.channel
    if isinstance(channel, Channel) and isinstance(channel.known, ClientInfo):
        return channel.known
    return None


def _peer_of(session: Session) -> tuple[str, int]:
    known = _known(session)
    if known is not None:
        return known.peerhost, known.peerport
    channel = session.channel
    return channel.edge.peer(channel) if channel is not None else ("", 0)


def _listener_of(session: Session) -> str:
    channel = session.channel
    if channel is not None:
        return channel.listener
    known = _known(session)
    return known.listener if known is not None else ""


def _is_within(host: str, network: Any) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped in network
    return address in network


def _username(session: Session) -> Any:
    return session.username or ""


#: Less than any time: that of who is not connected, and so not idle.
_NEVER: Final = -(1 << 62)
#: What a list of clients may be sorted by. Times are moments, turned around: an age grows while
#: pages are turned, and a cursor that held one would skip clients or show them twice.
SORTS: Final[dict[str, Callable[[Session], Any]]] = {
    "client_id": lambda session: session.client_id,
    "username": _username,
    "session_age": lambda session: -session.created_at,
    "subscriptions": lambda session: session.subscribed(),
    "inflight": lambda session: len(session.inflight or ()),
    "mqueue": lambda session: session.mqueue.length if session.mqueue is not None else 0,
    "mqueue_bytes": lambda session: session.mqueue.size if session.mqueue is not None else 0,
    "unsent_bytes": lambda session: session.channel.out_bytes if session.channel is not None else 0,
    "idle": lambda session: -session.channel.last if session.channel is not None else _NEVER,
}
#: Those that are moments.
_MOMENTS: Final = frozenset(("session_age", "idle"))
