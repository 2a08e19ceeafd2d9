"""Client id -> session: who has it, who takes it over, when it ends.

    CONNECT --claims--> session is new | goes on | is taken over from another connection
    connection ends --> session ends with it, or is away --due--> will published, session expired

A client id belongs to one session, and a session to one connection: a second CONNECT takes it over,
if it comes from the same principal. Connections are ended here for reasons of ours, as bans are.

Which process owns a client id, and what outlasts the process, is asked of two providers
(`mqttd.interfaces.IRegistry`, `ISessionStore`). A session is stored when its connection ends, and
handed over whole when another process takes its client id.

MQTT 5.0: 3.1.4 (MQTT-3.1.4-3, takeover), 3.1.2.11.2 (session expiry), 4.1 (session state).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from sys import intern
from typing import Any, Final

from mqttd.broker.ground.seams import Ownership, SessionStore
from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.publish.wills import Wills
from mqttd.broker.sessions.alone import Alone, Forgets
from mqttd.broker.sessions.directory import Directory
from mqttd.broker.sessions.endings import Banned, Burial
from mqttd.broker.sessions.handing import Estate, Handing, burden
from mqttd.broker.sessions.login import Login
from mqttd.broker.sessions.quota import Quota
from mqttd.broker.sessions.records import Record, leave, queue_of, record_of, restore
from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.packets import Connect
from mqttd.net.fair import house_of
from mqttd.session.channel.channel import Channel
from mqttd.session.ground.connection import Connection, Edge
from mqttd.session.ground.settings import NEVER
from mqttd.session.ground.wheel import milliseconds
from mqttd.session.session import Session
from mqttd.types import ClientInfo, SessionState

__all__ = ["FIRST_EPOCH", "Registry"]


class _Gone(Edge):
    """The edge of a connection that is over."""

    def flush(self, channel: Connection) -> None:
        channel.out = None

    def shut(self, channel: Connection) -> None:
        pass

    def pause(self, channel: Connection) -> None:
        pass

    def resume(self, channel: Connection) -> None:
        pass

    def peer(self, channel: Connection) -> tuple[str, int]:
        return ("", 0)


_GONE: Final = _Gone()


#: The epoch of an ownership that never changes.
FIRST_EPOCH: Final = 1

#: Characters that are kept of why a connection ended: it may name what a client has sent.
_REASON: Final = 200

#: Messages whose end with their session is kept one by one; of more, how many.
_TOLD: Final = 2000

#: Packets of a queue that are stored at once.
_BATCH: Final = 100


class Registry:
    """The sessions of a broker, and the end of its connections."""

    def __init__(
        self, broker: Publishing, wills: Wills, ownership: Ownership, store: SessionStore
    ) -> None:
        self.broker = broker
        self.wills = wills
        self.ownership: Ownership = ownership
        #: Every client id is ours, and nothing is stored: nobody needs to be asked.
        self.alone: bool = isinstance(ownership, Alone) and isinstance(store, Forgets)
        self.store: SessionStore = store
        self.sessions = broker.sessions
        self.handing = Handing(broker)
        #: The client ids of `sessions` in order.
        self.directory = Directory()
        #: Called with each session that begins here, and the state that it was, if it was before.
        self.entered: Callable[[Session, SessionState | None], object] | None = None
        #: Client id -> epoch of its ownership, where that is not the first.
        self.epochs: dict[str, int] = {}
        #: Connections that have sent CONNECT.
        self.channels: int = 0
        #: The broker is being stopped: `session.wills_at_stop` says what becomes of wills.
        self.stopping: bool = False
        #: Whose client ids may be, and how many.
        self.quota = Quota(broker.settings)
        self.quota.settings_changed([])
        ownership.watch(self.hand_over)

    # -- beginning -----------------------------------------------------------------------------

    def find(self, client: ClientInfo, connect: Connect) -> Session | None:
        """The session that this client goes on with; the older connection of it ends.

        None if it starts afresh, and then what there was has ended.
        """
        session = self.sessions.get(client.client_id)
        if session is None:
            return None
        afresh = self._is_afresh(session, client, connect.clean_start)
        self._take_over(session, afresh)
        if self.sessions.get(client.client_id) is not session:
            return None
        if afresh:
            self.end(session, "session.discarded", "clean start", True)
            self.broker.metrics.sessions_discarded += 1
            return None
        return session

    def _is_afresh(self, session: Session, client: ClientInfo, clean: bool) -> bool:
        """Whether it does not go on: names of another mountpoint or user are not its."""
        before = session.client
        place = before.mountpoint if isinstance(before, ClientInfo) else ""
        return clean or client.mountpoint != place or session.username != client.username

    def ended_by(self, client: ClientInfo, clean: bool) -> Session | None:
        """The session that ends when this client is let in; None if there is none."""
        session = self.sessions.get(client.client_id)
        if session is None or self.is_foreign(client):
            return None
        ends = session.channel is not None and session.expiry_interval == 0
        return session if ends or self._is_afresh(session, client, clean) else None

    def create(self, client: ClientInfo) -> Session:
        """A new session for this client."""
        session = Session(self.broker, client.client_id, client.username)
        self._entered(session)
        self.quota.began(session, client.peerhost)
        self.broker.metrics.sessions_created += 1
        if self.entered is not None:
            self.entered(session, None)
        return session

    def set_expiry(self, session: Session, connect: Connect, client: ClientInfo) -> None:
        """How long the session outlives its connection (3.1.2.11.2)."""
        session.set_expiry(self.expiry_of(connect))
        if session.owner and client.mountpoint:
            self.broker.journal.placed(session.owner, client.mountpoint)

    def expiry_of(self, connect: Connect) -> int:
        """The seconds of that."""
        settings = self.broker.settings
        if connect.version == 5:
            expiry = 0
            if connect.properties is not None:
                value = connect.properties.get(prop.SESSION_EXPIRY_INTERVAL)
                expiry = value if isinstance(value, int) else 0
        else:
            expiry = 0 if connect.clean_start else settings.expiry_interval_seconds
        if expiry > settings.max_expiry_interval_seconds:
            expiry = settings.max_expiry_interval_seconds
        return expiry

    def _take_over(self, session: Session, clean_start: bool) -> None:
        """Another connection came for this session: end the older one (MQTT-3.1.4-3)."""
        broker = self.broker
        channel = broker.channel_of(session)
        if channel is not None:
            broker.metrics.sessions_takenover += 1
            self._left(channel, session, "taken over")
            broker.tell("session.takenover", session)
            broker.farewell(session, "taken over")
            session.client = broker.client_of(session)
            session.detach()
            session.away_since = broker.now
            channel.close(reasons.SESSION_TAKEN_OVER, "session taken over")
            channel.session = None
            if session.expiry_interval == 0:
                # The old connection's session ends with it; the new one starts afresh.
                self.wills.publish(session)
                self.end(session, "session.terminated", "taken over", True)
                return
        else:
            self.due(session, True)  # it may be over, and wait for its turn to end
        if session.will is not None and (clean_start or session.will_delay == 0):
            self.wills.publish(session)
        session.set_will(None, 0)

    # -- end of connections and sessions -------------------------------------------------------

    def closed(self, channel: Channel) -> None:
        """A connection is gone: will, session end or wait."""
        try:
            self._closed(channel)
        finally:
            # An edge that knows its channel is a cycle with all of its layers, 47 KiB with TLS:
            # what has grown old is not collected (`mqttd.monitor.garbage`), so it ends here.
            channel.edge = _GONE

    def _closed(self, channel: Channel) -> None:
        broker = self.broker
        broker.metrics.connections_closed += 1
        login = channel.auth
        if isinstance(login, Login):
            login.close()
        if channel.version:
            self.channels -= 1
        session = channel.session
        if session is None or session.channel is not channel or session.ended:
            return
        broker.farewell(session, channel.close_reason)
        self._left(channel, session, channel.close_reason)
        session.detach()
        if self.stopping and broker.settings.wills_at_stop == "drop":
            session.set_will(None, 0)
        if session.expiry_interval == 0:
            self.wills.publish(session)
            self.end(session, "session.terminated", channel.close_reason)
            return
        session.leave()
        session.house = intern(house_of(channel.edge.peer(channel)[0]))
        broker.tell("session.disconnected", session)
        if session.will is not None and session.will_delay == 0 and not self._keeps(session):
            self.wills.publish(session)
        self._await_end(session, broker.now)
        if self.store.keeps:
            self._save(session)

    def _left(self, channel: Channel, session: Session, reason: str) -> None:
        session.last_reason = reason[:_REASON]
        flapping = self.broker.flapping
        listener = self.broker.listeners.get(channel.listener)
        if flapping is not None and listener is not None and listener.flapping is not None:
            flapping.ended(listener.flapping, self.broker.client_of(session), self.broker.now)

    def put_back(self, session: Session) -> None:
        """A session was restored, whose client is away."""
        self._entered(session)
        self.quota.began(session, "")

    def resume_waiting(self, session: Session) -> None:
        """A session was restored, its client is away: it ends, and its will is due, in time."""
        self.due(session)

    def _await_end(self, session: Session, since: int) -> None:
        """Schedule the nearer of will delay and session expiry."""
        session.away_since = since
        lives = session.expiry_interval
        at = 0 if lives == NEVER else since + milliseconds(lives)
        if session.will is not None and not self._keeps(session):
            will_at = since + milliseconds(session.will_delay)
            at = min(at or will_at, will_at)
        if at:
            self.broker.wheel.schedule(session, at)

    def _keeps(self, session: Session) -> bool:
        """Its will is for the next start of the broker, however long it takes to stop."""
        keep = self.stopping and self.broker.settings.wills_at_stop == "keep"
        return keep and (session.owner != 0 or self.store.keeps)

    def due(self, session: Session, followed: bool = False) -> None:
        """Will delay or session expiry of a client that is away has passed, if it still is away."""
        if session.channel is not None or self.sessions.get(session.client_id) is not session:
            return
        broker = self.broker
        since = session.away_since
        if self.has_expired(session):
            broker.metrics.sessions_expired += 1
            self.wills.publish(session)
            self.end(session, "session.terminated", "expired", followed)
            return
        if session.will is not None and broker.now >= since + milliseconds(session.will_delay):
            self.wills.publish(session)
        self._await_end(session, since)

    def has_expired(self, session: Session) -> bool:
        """Whether a session whose client is away is over."""
        lives = milliseconds(session.expiry_interval)
        return session.expires() and self.broker.now >= session.away_since + lives

    def end(self, session: Session, point: str, reason: str, followed: bool = False) -> None:
        """A session is over: hooks hear of it at `point`, what it still held is dropped.

        Its client id is given back, unless another session of it follows at once.
        """
        broker = self.broker
        client_id = session.client_id
        broker.topics.work += burden(session)
        self._gone(client_id)
        if self.store.keeps:
            self._told(self.store.remove, client_id)
        if not followed:
            self.release(client_id, self.epochs.pop(client_id, FIRST_EPOCH))
        broker.wheel.cancel(session)
        if point == "session.discarded":
            broker.tell(point, session)
        heard = broker.tap_missed
        # What is not told one by one is not read again: the loop would wait for the disk.
        trail = broker.trail
        told = trail is not None and session.held() <= min(_TOLD, trail.left("session_ended"))
        lost = session.pending() if heard or told else []
        session.leave_journal()
        self._bury(session)
        broker.completing.pop(session.client_id, None)
        self.handing.take(Estate(session, told, reason), lost)
        if self.stopping:
            self.handing.finish()
        broker.tell("session.terminated", session, reason)

    def _bury(self, session: Session) -> None:
        """Take the subscriptions of a session out of the router, if they are many bit by bit."""
        session.ended = True
        burial = Burial(self.broker, session)
        if burial.slice():
            self.broker.turns.add(burial)

    def discard(self, session: Session, reason_code: int, detail: str) -> None:
        """End a session for a reason of ours, and the connection of its client first."""
        broker = self.broker
        channel = broker.channel_of(session)
        if channel is not None:
            self._left(channel, session, detail)
            broker.farewell(session, detail)
            session.client = broker.client_of(session)
            session.detach()
            channel.session = None
            channel.close(reason_code, detail)
        self.wills.publish(session)
        self.end(session, "session.discarded", detail)
        broker.metrics.sessions_discarded += 1

    def _entered(self, session: Session) -> None:
        client_id = session.client_id
        if client_id not in self.sessions:
            self.directory.add(client_id)
        self.sessions[client_id] = session

    def _gone(self, client_id: str) -> None:
        self.quota.ended(client_id)
        if self.sessions.pop(client_id, None) is not None:
            self.directory.remove(client_id)

    # -- owners and stores ---------------------------------------------------------------------

    def is_foreign(self, client: ClientInfo) -> bool:
        """Whether the session of this client id is another user's, and stays so."""
        session = self.sessions.get(client.client_id)
        if session is None or not self.broker.settings.owned_by_user:
            return False
        return session.username != client.username

    def read(self, client_id: str, state: SessionState) -> Record | None:
        """The record of a state; one that cannot be read is logged, and counts as none."""
        try:
            return Record(state.record)
        except ValueError as error:
            self.broker.log("session lost", {"client_id": client_id, "reason": str(error)})
            return None

    def enter(self, client_id: str, epoch: int, state: SessionState, record: Record) -> Session:
        """A session that was stored or handed over is here from now on."""
        session = restore(self.broker, client_id, state, record)
        self._entered(session)
        self.quota.began(session, "")
        self.own(client_id, epoch)
        if self.entered is not None:
            self.entered(session, state)
        return session

    def own(self, client_id: str, epoch: int) -> None:
        """The ownership of a client id has this epoch."""
        if epoch != FIRST_EPOCH:
            self.epochs[client_id] = epoch

    def keep(self, client_id: str, epoch: int, state: SessionState) -> None:
        """Take in a session whose client is away."""
        record = self.read(client_id, state)
        if record is None or client_id in self.sessions:
            return
        session = self.enter(client_id, epoch, state, record)
        self._await_end(session, session.away_since)
        if self.store.keeps:
            self._save(session)

    def recover(self, stored: Iterable[tuple[str, SessionState]]) -> None:
        """Take in what the store has kept, before clients are let in."""
        for client_id, state in stored:
            record = self.read(client_id, state)
            if record is not None:
                session = self.enter(client_id, state.epoch, state, record)
                self._await_end(session, session.away_since)

    def release(self, client_id: str, epoch: int) -> None:
        """Give a client id back."""
        if self.alone:
            return
        try:
            asked = self.ownership.release(client_id, epoch)
            if asked is not None:
                asked.addCallbacks(_nothing, self._failed)
        except Exception as error:
            self._failed(error)

    def hand_over(
        self,
        client_id: str,
        epoch: int,
        leaves: Callable[[Session], Sequence[bytes]] = leave,
    ) -> SessionState | None:
        """Another process owns this client id from `epoch` on: its session ends here, and goes.

        leaves: takes its queue, and sees to what the journal keeps of it.
        Returns its state; None if there is none, or `epoch` is not later than ours.
        """
        broker = self.broker
        session = self.sessions.get(client_id)
        own = self.epochs.get(client_id, FIRST_EPOCH)
        if session is None or epoch <= own:
            return None
        state: SessionState | None = None
        if session.channel is None:
            broker.tell("session.takenover", session)  # no connection ends here that would tell it
        self._take_over(session, False)
        if self.sessions.get(client_id) is session:
            state = SessionState(record_of(broker, session), leaves(session), own)
            if self.store.keeps:
                self._told(self.store.remove, client_id)
            self._gone(client_id)
            broker.wheel.cancel(session)
            self._bury(session)
            broker.completing.pop(client_id, None)
            session.forget()
        self.epochs.pop(client_id, None)
        broker.perform_later()
        return state

    def _save(self, session: Session) -> None:
        """Store a session whose client has gone."""
        client_id = session.client_id
        self._told(self.store.save, client_id, record_of(self.broker, session))
        queue = queue_of(self.broker, session)
        for at in range(0, len(queue), _BATCH):
            self._told(self.store.append, client_id, queue[at : at + _BATCH])

    def _told(self, change: Callable[..., Any], client_id: str, *what: object) -> None:
        """Make a change in the store, and log it if that fails now or later."""
        try:
            asked = change(client_id, self.epochs.get(client_id, FIRST_EPOCH), *what)
            if asked is not None:
                asked.addCallbacks(_nothing, self._failed)
        except Exception as error:
            self._failed(error)

    def _failed(self, failure: Any) -> None:
        error = getattr(failure, "value", failure)
        self.broker.log("session store failed", {"error": repr(error)})

    # -- ended by us ---------------------------------------------------------------------------

    def kick(self, client_id: str, reason_code: int, detail: str) -> bool:
        """End a client's connection; False if it has none."""
        session = self.sessions.get(client_id)
        channel = self.broker.channel_of(session) if session is not None else None
        if channel is None:
            return False
        self.broker.metrics.clients_kicked += 1
        self.broker.end_channel(channel, reason_code, detail)
        self.broker.perform()
        return True

    def end_session(self, client_id: str, reason_code: int, detail: str) -> bool:
        """End a session, and the connection it may have; its will is published (3.1.2-10)."""
        if (session := self.sessions.get(client_id)) is None:
            return False
        session.end_with_connection()
        self.kick(client_id, reason_code, detail)
        if self.sessions.get(client_id) is session:
            session.detach()  # its connection may be in line
            self.wills.publish(session)
            self.end(session, "session.terminated", detail)
        self.broker.perform()
        return True

    def enforce_bans(self) -> int:
        """End the connections of clients that are banned; returns how many so far."""
        return Banned(self.broker).run()


def _nothing(result: object) -> None:
    """What a store answers when it is done."""
