"""What operators see of several workers as one broker: their answers, put together.

    Ask --> Asker --every worker--> answers --`mqttd.admin.lists`, `sums`--> one answer

Each method is a rule of `mqttd.workers.rules`.

Promise: a worker that is being started again, or gives no sign of life, is left out of what is
shown, which says so, and holds up what all have to do (503).
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from mqttd import __version__, compiled
from mqttd.access.auth.who import who_may_connect
from mqttd.access.diff import MAX_CHANGES
from mqttd.access.questions import MAX_CLIENTS
from mqttd.admin import lists
from mqttd.admin.doors.health import exposition
from mqttd.admin.http.requests import ApiError
from mqttd.admin.http.route import Ask
from mqttd.workers.asking import Answer, Asker, Json, NoAnswer, accepted, noted
from mqttd.workers.place import worker_of
from mqttd.workers.sums import add_up, counted, listeners_of, status_of

__all__ = ["Views"]

_PREFIX: Final = "/api/v1"
_HITS: Final = frozenset(("hits",))
_ERRORS: Final = frozenset(("errors", "calls", "failures"))
_WRITTEN: Final = frozenset(
    ("blocks", "block_bytes", "file_bytes", "groups_written", "records_moved")
)


class Views:
    """The rules by which workers are asked; `asker` asks them, `draining()`: nobody is let in."""

    def __init__(self, asker: Asker, draining: Callable[[], bool] = lambda: False) -> None:
        self.asker = asker
        self.draining = draining
        self.service = asker.service

    async def _told(self, ask: Ask, path: str, **query: object) -> dict[int, Json]:
        """What each worker that is there answers to a path, by its number."""
        given = {name: value for name, value in query.items() if value is not None}
        target = _PREFIX + path + (f"?{urlencode(given)}" if given else "")
        answers = await self.asker.shown(ask, target, b"")
        return {each.worker: each.json() for each in answers}

    async def _of_query(self, ask: Ask, path: str) -> dict[int, Json]:
        """The same, with the query that was asked."""
        return await self._told(ask, path, **_words(msgspec.to_builtins(ask.query)))

    # -- whom to ask ---------------------------------------------------------------------------

    async def one(self, ask: Ask) -> bytes:
        """What every worker would answer the same, or tell the others."""
        return self._passed(ask, [await self.asker.ask(self.asker.anyone(), ask)])

    async def all(self, ask: Ask) -> bytes:
        """What every worker has to do."""
        return self._passed(ask, await self.asker.each(self.asker.whole(), ask))

    async def in_turn(self, ask: Ask) -> bytes:
        """What worker 1 decides, and the others do, too."""
        first, *others = self.asker.whole()
        said = await self.asker.ask(first, ask)
        await self.asker.each(others, ask)
        return self._passed(ask, [said])

    async def owner(self, ask: Ask) -> Json:
        """What is about one client: its worker."""
        client_id = ask.path.get("client_id") or (ask.body or ask.query).client_id
        number = worker_of(client_id, self.service.count)
        said = await self.asker.ask(number, ask)
        self._passed(ask, [said])
        return lists.marked(said.json(), lists.WORKER, number)

    async def explain(self, ask: Ask) -> Any:
        """A decision: for a client that is known, at its worker."""
        return await (self.one(ask) if ask.query.client_id is None else self.owner(ask))

    async def any_of(self, ask: Ask) -> bytes:
        """What has to be done wherever there is something to do; else the refusal."""
        done: list[Answer] = []
        refused: ApiError | None = None
        for number in self.asker.whole():
            try:
                done.append(await self.asker.ask(number, ask))
            except ApiError as error:
                refused = error
        if refused is not None and (not done or refused.status != 404):
            raise refused
        return self._passed(ask, done)

    async def users(self, ask: Ask) -> bytes:
        """Users in their file: one worker writes it, the others read it again."""
        return await self._then(ask, "/auth/reload")

    async def promote(self, ask: Ask) -> bytes:
        """A candidate becomes the rules: one worker writes the file, the others read it again."""
        return await self._then(ask, "/acl/reload")

    async def _then(self, ask: Ask, path: str) -> bytes:
        first, *others = self.asker.whole()
        said = await self.asker.ask(first, ask)
        for number in others:
            accepted(await self.asker.tell(number, "POST", _PREFIX + path, b"{}", ask.caller))
        return self._passed(ask, [said])

    async def command(self, ask: Ask) -> Json:
        """A command of a plugin, where it is: what they say, once where it is the same.

        Who has nothing to say is left out.
        """
        numbers = await self.having(ask, ask.path["name"])
        answers: list[Answer] = await self.asker.each(numbers, ask)
        self._passed(ask, answers)
        told = {each.worker: str(each.json()["output"]) for each in answers}
        said = {number: output for number, output in told.items() if output}
        if len(set(said.values())) <= 1:
            return answers[0].json() | {"output": next(iter(said.values()), "")}
        text = "\n".join(f"worker {number}:\n{output}" for number, output in said.items())
        return {"output": text}

    async def having(self, ask: Ask, name: str) -> list[int]:
        """The workers that have a plugin: all, or the first alone."""
        numbers = self.asker.whole()
        target = f"{_PREFIX}/plugins/{quote(name, safe='')}"
        told: Answer = await self.asker.ask(1, ask, target, b"", "GET")
        return numbers[:1] if told.json()["workers"] == "one" else numbers

    def _passed(self, ask: Ask, answers: list[Answer]) -> bytes:
        """The first answer as it is, and what was changed for the audit."""
        noted(ask, answers)
        ask.status = answers[0].status
        ask.request.setResponseCode(ask.status)
        return answers[0].body

    # -- the broker ----------------------------------------------------------------------------

    async def status(self, ask: Ask) -> Json:
        """Sums, and a line for each worker, also for one that does not answer."""
        service = self.service
        try:
            told = await self._told(ask, "/status")
        except NoAnswer:
            told = {}
        workers = [
            {"worker": worker.number, "pid": worker.pid or None, "state": worker.state}
            for worker in service.workers
        ]
        ours = {
            "name": service.config.node.name,
            "version": __version__,
            "compiled": compiled(),
            "python": platform.python_version(),
            "pid": os.getpid(),
            "who_may_connect": who_may_connect(service.config.auth),
        }
        return status_of(told, workers, ours)

    async def nodes(self, ask: Ask) -> Json:
        """One node, with the sums of its workers."""
        first, *others = (await self._told(ask, "/nodes")).values()
        node: Json = first["nodes"][0]
        for each in others:
            for name in ("connections", "sessions"):
                node[name] += each["nodes"][0][name]
        return {"nodes": [node, *first["nodes"][1:]]}

    async def metrics(self, ask: Ask) -> Json:
        """Counters and gauges of all."""
        counters, gauges = await self._figures(ask)
        return {"counters": counters, "gauges": gauges}

    async def exposition(self, ask: Ask) -> bytes:
        """The same, in the text format of Prometheus."""
        counters, gauges = await self._figures(ask)
        return exposition(counters, gauges).encode()

    async def _figures(self, ask: Ask) -> tuple[Json, Json]:
        answers = list((await self._told(ask, "/metrics")).values())
        counters = counted([each["counters"] for each in answers])
        gauges = add_up([each["gauges"] for each in answers])
        workers = self.service.workers
        counters["workers_restarted"] = sum(max(0, each.starts - 1) for each in workers)
        gauges["workers_down"] = sum(1 for each in workers if each.down)
        return counters, gauges

    async def ready(self, ask: Ask) -> bytes:
        """Whether clients are let in, by what is known here: anybody may ask, and often."""
        reason = self._not_ready()
        if not reason:
            return b'{"ready": true}\n'
        ask.request.setResponseCode(503)
        return b'{"ready": false, "reason": "%s"}\n' % reason.encode()

    def _not_ready(self) -> str:
        """Why somebody is not let in; empty: who comes is."""
        if self.draining():
            return "draining"
        away = [str(worker.number) for worker in self.service.workers if not worker.ready]
        if away:
            return f"worker {', '.join(away)} is starting"
        return "" if self.service.opened else "starting"

    # -- lists ---------------------------------------------------------------------------------

    async def clients(self, ask: Ask) -> Json:
        """A page of clients, in one order."""
        told = await self._of_query(ask, "/clients")
        return _lacking(ask, lists.clients_of(told, ask.query.sort, ask.query.limit))

    async def subscriptions(self, ask: Ask) -> Json:
        """The subscriptions of one client, or a page of everybody's."""
        if ask.query.client_id is not None:
            return await self.owner(ask)
        told = await self._of_query(ask, "/subscriptions")
        return _lacking(ask, lists.subscriptions_of(told, ask.query.limit))

    async def topics(self, ask: Ask) -> Json:
        """A page of filters."""
        told = await self._of_query(ask, "/topics")
        return _lacking(ask, lists.filters_of(told, ask.query.limit))

    async def routes(self, ask: Ask) -> Json:
        """Where a message goes."""
        return _lacking(ask, lists.routes_of(await self._of_query(ask, "/routes")))

    async def memory(self, ask: Ask) -> Json:
        """Who holds what."""
        return lists.memory_of(await self._told(ask, "/memory"))

    async def slow(self, ask: Ask) -> Json:
        """Who reads slowly, the longest first."""
        told = await self._told(ask, "/slow")
        found = sorted(lists.named(told, "slow"), key=lambda one: -float(one["seconds"]))
        return {"slow": found[:100], "count": sum(each["count"] for each in told.values())}

    async def alarms(self, ask: Ask) -> Json:
        """The alarms of each."""
        told = await self._told(ask, "/alarms")
        return {name: lists.named(told, name) for name in ("alarms", "past")}

    async def listeners(self, ask: Ask) -> Json:
        """The listeners, with the connections of all workers."""
        told = await self._told(ask, "/listeners")
        return {"listeners": listeners_of([each["listeners"] for each in told.values()])}

    async def listener(self, ask: Ask) -> Json:
        """One listener: shown, or started and stopped in every worker."""
        changes = ask.request.method == b"POST"
        answers = await self._changed(ask) if changes else await self.asker.shown(ask)
        told = listeners_of([[each.json()] for each in answers])[0]
        if changes:
            stopped = self.service.stopped
            (stopped.add if told["state"] == "stopped" else stopped.discard)(told["id"])
        return told

    async def _changed(self, ask: Ask) -> list[Answer]:
        """What all have done."""
        answers: list[Answer] = await self.asker.each(self.asker.whole(), ask)
        noted(ask, answers)
        return answers

    # -- topics --------------------------------------------------------------------------------

    async def topic_metrics(self, ask: Ask) -> Json:
        """What came to the topics that are counted; all workers count."""
        changes = ask.request.method in (b"POST", b"DELETE")
        answers = await self._changed(ask) if changes else await self.asker.shown(ask)
        return lists.counts_of({each.worker: each.json() for each in answers})

    async def busiest(self, ask: Ask) -> Json:
        """The topics with most messages."""
        return lists.counts_of(await self._of_query(ask, "/topics/busiest"), ask.query.limit)

    # -- messages ------------------------------------------------------------------------------

    async def why(self, ask: Ask) -> Json:
        """What became of messages, as far as the workers that find them know."""
        told = await self._of_query(ask, "/why")
        return _lacking(ask, lists.lives_of(told, ask.query.limit))

    async def life(self, ask: Ask) -> Json:
        """What became of one message, everywhere."""
        lives: list[Json] = []
        refused: ApiError | None = None
        why: dict[int, str] = {}
        there = self.asker.there()
        for number in there:
            try:
                said: Answer = await self.asker.ask(number, ask)
                lives.append({**said.json(), "worker": number})
            except NoAnswer as error:
                why[number] = error.why
                refused = error
            except ApiError as error:
                refused = error
        if not lives and refused is not None:
            raise refused
        self.asker.leave_out(ask, set(there) - why.keys(), why)
        return _lacking(ask, lists.life_in(lives))

    # -- rules ---------------------------------------------------------------------------------

    async def acl_rules(self, ask: Ask) -> Any:
        """The rules, with how often each has decided anywhere."""
        told = await self._of_query(ask, "/acl/rules")
        return lists.joined(list(told.values()), _HITS)

    async def acl_who(self, ask: Ask) -> Json:
        """Who may: the clients of all workers."""
        told = await self._of_query(ask, "/acl/who")
        first = next(iter(told.values()))
        count = sum(each["count"] for each in told.values())
        return {**first, "clients": lists.named(told, "clients")[:MAX_CLIENTS], "count": count}

    async def acl_diff(self, ask: Ask) -> Json:
        """What other rules would change for the clients of all workers."""
        answers = await self.asker.shown(ask)
        told = {each.worker: each.json() for each in answers}
        first = next(iter(told.values()))
        names = ("clients", "clients_changed", "subscriptions_lost", "gains", "losses")
        sums = {name: sum(each[name] for each in told.values()) for name in names}
        return {**first, **sums, "changes": lists.named(told, "changes")[:MAX_CHANGES]}

    async def acl_shadow(self, ask: Ask) -> Json:
        """Where the candidate differs, at each worker."""
        told = await self._of_query(ask, "/acl/shadow")
        first = next(iter(told.values()))
        names = ("compared", "would_allow", "would_deny")
        sums = {name: sum(each[name] for each in told.values()) for name in names}
        differences = sorted(lists.named(told, "differences"), key=lambda one: -int(one["count"]))
        return {**first, **sums, "differences": differences}

    async def hooks(self, ask: Ask) -> Any:
        """Hook points, with the errors of all workers."""
        told = await self._told(ask, "/hooks")
        return lists.joined(list(told.values()), _ERRORS)

    # -- what is kept --------------------------------------------------------------------------

    async def store(self, ask: Ask) -> Json:
        """The stores: sums, and where each is."""
        told = await self._told(ask, "/store")
        answers = list(told.values())
        first = answers[0]
        if "path" not in first:
            return first
        total = {**first}
        total.update(lists.added([{name: each[name] for name in _WRITTEN} for each in answers]))
        total["path"] = ", ".join(each["path"] for each in answers)
        for name in ("failing", "full"):
            total[name] = any(each[name] for each in answers)
        return total

    async def compact(self, ask: Ask) -> Json:
        """Give unused space back, one worker after the other."""
        done: list[Answer] = []
        for number in self.asker.whole():
            done.append(await self.asker.ask(number, ask))
        noted(ask, done)
        told = [each.json() for each in done]
        sums = lists.added([{name: each[name] for name in _SIZES} for each in told])
        dropped = [name for each in told for name in each["dropped"]]
        return {"path": ", ".join(each["path"] for each in told), **sums, "dropped": dropped}


_SIZES: Final = ("before", "after", "moved")


def _lacking(ask: Ask, found: Json) -> Json:
    """An answer of all workers, with those that are not in it, as a cluster says it of nodes."""
    return {**found, "missing": ask.missing}


def _words(query: Json) -> dict[str, object]:
    """A query as it is written."""
    return {name: _word(value) for name, value in query.items() if value is not None}


def _word(value: object) -> object:
    return json.dumps(value) if isinstance(value, bool) else value
