"""The broker's half of Spark's sink: rows are staged by tasks, and released as one batch.

    executor                       driver                      broker
    put query/stage/0 ------------------------------------->   kept, answered
    put query/stage/1 ------------------------------------->   kept, answered
          |                         abort ---------------->    its rows are dropped
          '-- (stage, 2 chunks) --> commit(batch 7)
                                    release query/7 -------->  (query, 7) and rows in one record
                                                               published; kept, logged; answered
                                    release query/7 again -->  answered, its rows are dropped

Requests are messages to ``$mqttd/stage/...`` with a Response Topic, which must be
``$mqttd/reply/<own client id>``; answers are JSON. They take the way any message takes, up to a
subscription of the plugin, so that they cost other clients nothing. The topic of each row is
authorized as if its client had published it.

Of several workers the first one stages, into the one file of the broker. A request comes to the
worker of its client, which authorizes it and hands it on:

    task --put query/stage/0--> worker 2 --$mqttd/staged/NODE/put/...--> worker 1 --reply--> task

Promise: of a query, batches are published in order, each once, whatever is asked for again. When
the broker dies in the middle of a batch, it goes on where its store says that it was, and gives the
event log what that lacks; a batch is answered when store and log have all of it. A message that is
refused then (no room for retained ones, a hook) ends the release with its topic and the reason:
asked for again, the batch goes on with that message, or behind it if it is to be skipped. It waits
for receivers for a while (`mqttd.pipeline.stage_pace`).
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish
from mqttd.codec.reasons import MqttError, name_of
from mqttd.codec.topic import validate_topic_name
from mqttd.pipeline.stage_pace import SLICE, Pace, Turns
from mqttd.pipeline.stage_progress import Before, Progress, logged_ids
from mqttd.pipeline.stage_requests import (
    MOST_ROWS,
    NAME,
    SKIP,
    Refusals,
    Request,
    number_of,
    packed,
    rows_of,
    skips,
    stages_of,
)
from mqttd.pipeline.stage_store import Batch, StageError, StageStore
from mqttd.session.ground.message import Message
from mqttd.types import ACTION_PUBLISH, OK, STOP, Action, ClientInfo, HookResult, Verdict

__all__ = ["PREFIX", "REPLY", "Staging"]

PREFIX: Final = "$mqttd/stage/"
REPLY: Final = "$mqttd/reply/"
#: Requests from one worker to another; followed by the name of their node.
HANDED: Final = "$mqttd/staged/"
OWN: Final = "$mqttd/"

#: How much longer than publishing a slice the next pause is.
REST: Final = 1.5
#: Seconds after a start before a batch that was under way is gone on with: clients come back.
RECOVER_AFTER: Final = 2.0
SWEEP_EVERY: Final = 3600.0


class Staging:
    """Serves the requests while its plugin is loaded.

    :param handle: the plugin's `IPluginHandle`; its worker stages if it is the first, or alone.
    :param folder: where the file is, the same for all workers.
    :param limit: bytes that may be staged.
    :param keep: seconds that something staged waits for its release.
    :param log: what gives the event log: (path, node, its next offset now), or None without one.
    :param logged: calls back when everything that was logged so far is written.
    """

    def __init__(
        self,
        handle: Any,
        folder: str,
        limit: int,
        keep: float,
        log: Callable[[], tuple[str, str, int] | None],
        logged: Callable[[Callable[[], None]], object],
    ) -> None:
        self.released = self.replayed = self.refused = self.published = self.skipped = 0
        self._handle = handle
        self._limit = limit
        self._keep = keep
        self._log = log
        self._logged = logged
        self._store: StageStore | None = None
        self._progress = Progress(handle.store)
        #: First ids of batches that stopped at a message which was refused.
        self._refused: set[int] = set()
        self._turns = Turns(handle)
        self._opening = threading.Lock()
        self._closed = False
        self._folder = folder
        self._path = os.path.join(folder, "stage.db")
        #: Whether the rows are staged here; else they are handed to who does.
        self._here = handle.worker < 2

    def start(self) -> None:
        """Subscribe, and go on with what was under way."""
        handle = self._handle
        handle.subscribe(f"{PREFIX}#", self._asked, qos=2)
        handle.hook("client.authorize", self.authorize, priority=100, topic_filter=f"{OWN}#")
        for name, text, read in (
            ("staged_bytes", "Bytes of rows that Spark has staged.", self._bytes),
            ("batches_total", "Batches of Spark that were published.", lambda: self.released),
            ("batches_replayed_total", "Batches asked for again, dropped.", lambda: self.replayed),
            ("batch_rows_total", "Messages of those published.", lambda: self.published),
            ("batch_skipped_total", "Messages refused and skipped.", lambda: self.skipped),
            (
                "batch_dropped_total",
                "Those that a queue was full for.",
                lambda: self._turns.dropped,
            ),
            ("batch_held_seconds_total", "Waited for receivers.", lambda: self._turns.held),
            ("stage_refused_total", "Requests that were refused.", lambda: self.refused),
        ):
            handle.add_metric(name, text, read)
        self._turns.afar.start()
        handle.add_command("stage", self._status, "What Spark's sinks have staged and released.")
        if not self._here:
            return
        if handle.workers > 1:
            handle.subscribe(f"{HANDED}{handle.node}/#", self._handed, qos=2)
        if os.path.exists(self._path):
            recover = partial(handle.call_later, RECOVER_AFTER, self._recover)
            handle.ready().addCallback(lambda _: recover())
        handle.call_every(SWEEP_EVERY, self._sweep)

    def stop(self) -> None:
        """Close the file; a batch under way goes on after the next start."""
        with self._opening:
            self._closed = True
            store, self._store = self._store, None
        if store is not None:
            store.close()

    # -- rights

    def authorize(
        self, client: ClientInfo, action: Action, topic: str, verdict: Verdict
    ) -> HookResult:
        """Everybody may ask, and hear the answers to itself; rows are authorized one by one."""
        if not topic.startswith(OWN):
            return OK
        if action.kind == ACTION_PUBLISH:
            allowed = topic.startswith(PREFIX)
        else:
            # A client may be called `+`: the name of a topic is no filter for those of others.
            allowed = topic == REPLY + client.client_id and not ("+" in topic or "#" in topic)
        return STOP(Verdict.ALLOW if allowed else Verdict.DENY)

    # -- requests

    def _asked(self, message: Any) -> Any:
        """A message to ``$mqttd/stage/...``; answered where it wants to be."""
        given = message.properties or {}
        if not message.client_id or given.get(prop.RESPONSE_TOPIC) != REPLY + message.client_id:
            self.refused += 1
            return None
        client = self._handle.client(message.client_id)
        if client is None:
            return None  # it is another worker's or node's, which answers; or it is gone
        words = message.topic[len(PREFIX) :].split("/")
        asked = Request(client.client_id, client.username, words, message.payload)
        asked.refused = Refusals() if skips(given) else None
        data = given.get(prop.CORRELATION_DATA)
        try:
            self._check(client, asked)
        except (StageError, MqttError) as error:
            self._answer(asked, data, Failure(error))
            return None
        if self._here or words == ["hello"]:
            self._begin(asked, data)
            return None
        pairs = [("client", asked.client_id)]
        if asked.username is not None:
            pairs.append(("user", asked.username))
        if asked.refused is not None:
            pairs += [SKIP, ("refused", json.dumps([asked.refused.count, asked.refused.first]))]
        properties: prop.Properties = {prop.USER_PROPERTY: pairs}
        if data is not None:
            properties[prop.CORRELATION_DATA] = data
        topic = f"{HANDED}{self._handle.node}/{'/'.join(words)}"
        self._handle.publish(topic, asked.payload, 1, False, properties)
        return None

    def _handed(self, message: Any) -> Any:
        """Another worker has authorized a request of its client."""
        if message.client_id:
            return  # a client of a node that has no such plugin
        given = message.properties or {}
        who = dict(given.get(prop.USER_PROPERTY, ()))
        words = message.topic[len(f"{HANDED}{self._handle.node}/") :].split("/")
        asked = Request(who["client"], who.get("user"), words, message.payload)
        if skips(given):
            asked.refused = Refusals(*json.loads(who["refused"]))
        self._begin(asked, given.get(prop.CORRELATION_DATA))

    def _begin(self, asked: Request, data: bytes | None) -> None:
        found = Deferred.fromCoroutine(self._serve(asked))
        found.addBoth(lambda answer: self._answer(asked, data, answer))

    def _answer(self, asked: Request, data: bytes | None, found: Any) -> None:
        if self._closed:
            return
        if isinstance(found, dict):
            if asked.refused is not None and asked.refused.count:
                self.skipped += asked.refused.count
                found["skipped"] = asked.refused.count
                found["refused"] = str(asked.refused)
                self._handle.log.warn(
                    "{request} of {client}: {refused}", request="/".join(asked.words),
                    client=asked.client_id, refused=str(asked.refused),
                )  # fmt: skip
        else:
            self.refused += 1
            error = found.value
            if not isinstance(error, StageError | MqttError):
                self._handle.log.failure("staging failed", failure=found)
            found = {"ok": False, "error": str(error)}
        properties = {prop.CORRELATION_DATA: data} if data is not None else None
        reply = REPLY + asked.client_id
        self._handle.publish(reply, json.dumps(found).encode(), 1, False, properties)

    def _check(self, client: ClientInfo, asked: Request) -> None:
        """Raises StageError or MqttError for what its client may not put."""
        if asked.words[0] != "put":
            return
        rows = rows_of(asked.payload)
        if not rows or len(rows) > MOST_ROWS:
            raise StageError(f"{len(rows)} rows: expected 1 to {MOST_ROWS}")
        allowed: set[tuple[str, int, bool]] = set()
        kept = []
        for row in rows:
            why = self._refusal(client, row, allowed)
            if not why:
                kept.append(row)
            elif asked.refused is None:
                raise StageError(why)
            else:
                asked.refused.add(why)
        if len(kept) < len(rows):
            asked.payload = packed(kept)

    def _refusal(self, client: ClientInfo, row: Publish, allowed: set[Any]) -> str:
        """Why a client may not publish this; empty if it may."""
        key = (row.topic, row.qos, row.retain)
        action = Action(ACTION_PUBLISH, row.qos, row.retain)
        if key not in allowed:
            try:
                validate_topic_name(row.topic)
            except MqttError as error:
                return str(error)
            if row.topic.startswith(OWN) or not self._handle.authorize(client, action, row.topic):
                return f"not authorized to publish to {row.topic}"
            allowed.add(key)
        beyond = self._handle.beyond(action, row.topic, len(row.payload))
        return f"refused a message to {row.topic}: {beyond}" if beyond else ""

    async def _serve(self, asked: Request) -> dict[str, Any]:
        verb, *rest = asked.words
        if verb == "hello" and not rest:
            return {"ok": True, "version": 1, "most_rows": MOST_ROWS}
        if not rest or not NAME.match(rest[0]):
            raise StageError(f"{'/'.join(asked.words)}: no such request")
        owner, query = asked.username or "", rest[0]
        number = number_of(rest[-1])
        if verb == "put" and len(rest) == 3 and NAME.match(rest[1]) and number is not None:
            rows, data, stage = len(rows_of(asked.payload)), asked.payload, rest[1]
            await self._run(lambda store: store.put(owner, query, stage, number, rows, data))
            return {"ok": True}
        if verb == "release" and len(rest) == 2 and number is not None:
            return await self._release(asked, owner, query, number)
        if verb == "abort" and len(rest) == 1:
            stages = list(stages_of(asked.payload))
            await self._run(lambda store: store.abort(owner, query, stages))
            return {"ok": True}
        if verb == "close" and len(rest) == 1:
            await self._run(lambda store: store.close_query(owner, query))
            await self._give_up(owner, query)
            return {"ok": True}
        raise StageError(f"{'/'.join(asked.words)}: no such request")

    async def _release(self, by: Request, owner: str, query: str, number: int) -> dict[str, Any]:
        stages = stages_of(by.payload)
        async with self._turns.of(owner, query):
            log = self._log()
            first = (time.time_ns() // 1000) << 64 | secrets.randbits(38) << 25
            asked = Batch(
                owner, query, number, by.client_id, by.username, first, 0,
                log[1] if log else "", log[2] if log else 0, False,
            )  # fmt: skip
            batch, new = await self._run(lambda store: store.release(asked, stages))
            if new:
                await self._publish(batch, Before(), by.refused)
            elif not batch.done:
                await self._go_on(batch, by.refused)
        if new:
            skipped = by.refused.count if by.refused is not None else 0
            return {"ok": True, "published": batch.rows - skipped}
        self.replayed += 1
        return {"ok": True, "published": 0, "replayed": True}

    # -- publishing

    async def _publish(self, batch: Batch, before: Before, refused: Refusals | None = None) -> None:
        """Publish a released batch but for what was done before."""
        # Before the first of them: a store that knows nothing of a batch never did.
        arrived = [min(before.routed, before.arrived or 0)]
        self._progress.reach(batch, before.routed, arrived[0])
        await self._handle.store.written()
        place, pace = 0, Pace(self._turns, batch.client_id)
        for stage, chunk, count in await self._run(lambda store: store.chunks(batch)):
            data = await self._run(partial(StageStore.read, batch=batch, stage=stage, chunk=chunk))
            rows = rows_of(data)
            pace.chunk(rows)
            end = 0
            while end < count:
                begin, end = end, min(end + SLICE, count)
                await pace.look(place + end <= before.routed)
                async with self._turns.one:
                    started = time.perf_counter()
                    end = pace.end(rows, begin, end, place + end <= before.routed)
                    if end > begin:
                        some = rows[begin:end]
                        await self._slice(batch, place + begin, some, before, arrived, refused)
                        pace.gone()
                        await self._turns.rest((time.perf_counter() - started) * REST)
                if end == begin:
                    await pace.wait()
            place += count
        written: Deferred[None] = Deferred()
        self._logged(lambda: written.callback(None))
        await written
        # Only then it is forgotten: what crosses at QoS 1 is in no store here.
        await self._handle.arrived(batch.client_id)
        await self._handle.store.written()
        await self._run(lambda store: store.finish(batch))
        self._progress.end(batch)
        self._refused.discard(batch.first_id)
        self.released += 1
        self._turns.tell(f"batch {batch.batch} of {batch.query}", pace.dropped)

    async def _slice(
        self, batch: Batch, place: int, rows: list[Publish], before: Before, arrived: list[int],
        refused: Refusals | None,
    ) -> None:  # fmt: skip
        """Publish these messages of it, from this place on, in this turn."""
        # In the turn in which they are published: both are kept, or neither.
        end = place + len(rows)
        self._progress.reach(batch, max(before.routed, end), arrived[0])
        for at, row in enumerate(rows, place):
            code = self._go(batch, at, row, before)
            if not code:
                continue
            why = f"refused a message to {row.topic}: {name_of(code)} (0x{code:02x})"
            if refused is None:
                await self._stop_at(batch, at, arrived[0])
                raise StageError(why)
            refused.add(why)
        self._handle.arrived(batch.client_id).addCallback(
            lambda _: arrived.__setitem__(0, max(arrived[0], end))
        )

    def _go(self, batch: Batch, place: int, row: Publish, before: Before) -> int:
        """Publish one message; 0, or the reason code with which it was refused."""
        noted, routed = before.halves(place, row.qos)
        if noted and routed:
            return 0
        message = Message(
            batch.first_id + place, row.topic, row.payload, row.qos, row.retain,
            row.properties, batch.client_id, batch.username,
        )  # fmt: skip
        code: int = -self._handle.republish(message, noted, routed)
        if code > 0:
            return code
        self.published += 1
        return 0

    async def _stop_at(self, batch: Batch, place: int, arrived: int) -> None:
        """The message at this place was refused: asked for again, the batch goes on with it."""
        self._refused.add(batch.first_id)
        # In the turn in which those before it were published.
        self._progress.reach(batch, place, min(place, arrived))
        await self._handle.arrived(batch.client_id)
        self._progress.reach(batch, place, place)
        await self._handle.store.written()

    async def _give_up(self, owner: str, query: str) -> None:
        """Nobody asks again for a write that has failed: what of it was refused stays out."""
        batch: Batch | None = await self._run(lambda store: store.last(owner, query))
        if batch is None or batch.first_id not in self._refused:
            return
        async with self._turns.of(owner, query):
            if batch.first_id in self._refused:
                self._refused.discard(batch.first_id)
                await self._run(lambda store: store.forget(batch))
                self._progress.end(batch)

    async def _go_on(self, batch: Batch, refused: Refusals | None = None) -> None:
        """Publish what is missing of a batch that was broken off."""
        log = self._log()
        found: set[int] = set()
        if log is not None:
            written: Deferred[None] = Deferred()
            self._logged(lambda: written.callback(None))
            await written
            found = await self._handle.in_thread(logged_ids, log[0], batch, log[1])
        routed, arrived = self._progress.of(batch)
        before = Before(routed, arrived, {each - batch.first_id for each in found})
        self._handle.log.info(
            "batch {batch} of {query}: {rows} messages, {done} were published before the stop",
            batch=batch.batch, query=batch.query, rows=batch.rows, done=before.routed,
        )  # fmt: skip
        await self._publish(batch, before, refused)

    def _recover(self) -> Any:
        async def go_on() -> None:
            known = self._progress.known()
            unfinished = await self._run(lambda store: store.unfinished())
            self._progress.forget(known, unfinished)
            for batch in unfinished:
                owner, query = batch.owner, batch.query
                async with self._turns.of(owner, query):
                    last = partial(StageStore.last, owner=owner, query=query)
                    if await self._run(last) != batch:
                        continue  # its release was asked for again, and went on with it
                    try:
                        await self._go_on(batch)
                    except StageError as error:  # the others go on
                        self._handle.log.error(
                            "batch {batch} of {query}: {error}", batch=batch.batch,
                            query=query, error=str(error),
                        )  # fmt: skip

        found = Deferred.fromCoroutine(go_on())
        found.addErrback(lambda failure: self._failed("recovery", failure))
        return found

    def _failed(self, what: str, failure: Any) -> None:
        if not self._closed:
            self._handle.log.failure("{what} of staged batches failed", what=what, failure=failure)

    # -- the file

    def _run(self, step: Callable[[StageStore], Any]) -> Any:
        """A step on the store, in a thread; opens it at first use."""

        def work() -> Any:
            return step(self._open())

        return self._handle.in_thread(work)

    def _open(self) -> StageStore:
        with self._opening:
            if self._closed:
                raise StageError("the plugin is being unloaded")
            if self._store is None:
                os.makedirs(self._folder, exist_ok=True)
                self._store = StageStore(self._path, self._limit)
            return self._store

    def _bytes(self) -> int:
        return self._store.bytes if self._store is not None else 0

    def _sweep(self) -> Any:
        if self._store is None and not os.path.exists(self._path):
            return None
        return self._run(lambda store: store.sweep(self._keep))

    def _status(self, argv: list[str]) -> Any:
        if not self._here:
            return ""  # who publishes has the figures
        if self._store is None and not os.path.exists(self._path):
            return "nothing was ever staged"
        own = {"dropped": self._turns.dropped, "held_seconds": round(self._turns.held, 3)}
        return self._run(lambda store: json.dumps(store.status() | own, indent=2))
