"""The HTTP interface of a node: the same routes, and some of them answer for the whole cluster.

    Ask --> table      all nodes are asked, their pages put together (`mqttd.admin.lists`)
        |-> life       what all of them know of one message
        |-> of_client  the node that has the client
        |-> of_node    this one, or that which `node` names
        '-> status     this one, with a line for each node
    another node --Question--> asked --> the route as this node alone serves it

`node=NAME` chooses one node of any of them. Routes that `RULES` does not have are this node's own.

Promise: a node that has not answered is named, in `missing` or in the refusal; a node answers for
others what its rules have and no more, from what it has itself: nobody is asked in a circle.
Answers are read and put together in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct
from twisted.internet.defer import Deferred, DeferredList, DeferredSemaphore

from mqttd.admin import lists
from mqttd.admin.api import Api
from mqttd.admin.http.parts import WAITING, Parts
from mqttd.admin.http.requests import ApiError, encoded, note
from mqttd.admin.http.route import Ask, Route
from mqttd.admin.resources.status import Status
from mqttd.cluster.admin.answers import ANSWERS
from mqttd.cluster.admin.asking import Unanswered
from mqttd.cluster.admin.questions import (
    NODE,
    Question,
    Said,
    answer_of,
    ask_of,
    key_of,
    question_of,
    refused,
    said_of,
)
from mqttd.readmodel.pages import BadWish

if TYPE_CHECKING:
    from mqttd.cluster.cluster import Cluster

__all__ = ["RULES", "NodeFront"]

Json = dict[str, Any]
Serve = Callable[[Ask], Any]

#: Who answers, by method and path below /api/v1.
RULES: Final[dict[str, str]] = {
    "GET /clients": "table",
    "GET /clients/{client_id}": "of_client",
    "DELETE /clients/{client_id}": "of_client",
    "GET /sessions": "table",
    "GET /sessions/{client_id}": "of_client",
    "DELETE /sessions/{client_id}": "of_client",
    "GET /subscriptions": "table",
    "POST /subscriptions": "of_client",
    "DELETE /subscriptions": "of_client",
    "GET /topics": "table",
    "GET /routes": "table",
    "GET /why": "table",
    "GET /why/{message_id}": "life",
    "GET /trace": "of_node",
    "POST /trace": "of_node",
    "DELETE /trace": "of_node",
    "GET /status": "status",
    "GET /metrics": "of_node",
    "GET /memory": "of_node",
    "GET /slow": "of_node",
    "GET /alarms": "of_node",
    "DELETE /alarms/{alarm}": "of_node",
    "GET /listeners": "of_node",
    "GET /store": "of_node",
    "GET /hooks": "of_node",
    "GET /plugins": "of_node",
}

#: How the answers to a table are one.
_JOINED: Final[dict[str, Callable[[lists.Told, Any], Json]]] = {
    "/clients": lambda told, wish: lists.clients_of(told, wish.sort, wish.limit, NODE),
    "/sessions": lambda told, wish: lists.clients_of(told, wish.sort, wish.limit, NODE),
    "/subscriptions": lambda told, wish: lists.subscriptions_of(told, wish.limit, NODE),
    "/topics": lambda told, wish: lists.filters_of(told, wish.limit, NODE),
    "/routes": lambda told, wish: lists.routes_of(told, NODE),
    "/why": lambda told, wish: lists.lives_of(told, wish.limit, NODE),
}


class NodeFront(Api):
    """The interface of the node that `cluster` makes of `parts`; `seconds` is a clock."""

    def __init__(self, cluster: Cluster, parts: Parts, seconds: Callable[[], float]) -> None:
        self.cluster = cluster
        self.node = parts
        self.asking = cluster.shown.asking
        #: What this node itself answers, by method and path.
        self._own: dict[str, tuple[Route, Serve]] = {}
        self._status = Status(parts)
        #: Tables that are put together.
        self._joining = DeferredSemaphore(2)
        parts.model.clients.clock = (time.time_ns() - time.monotonic_ns()) // 1_000_000
        super().__init__(parts, seconds)
        self.asking.serve = self.asked

    def offered(self, route: Route) -> Route:
        """A route with the parameter `node`, and what is refused because there are nodes."""
        if _rule_of(route) is None:
            return route
        return replace(
            route, query=_with_node(route.query), errors=(*route.errors, 404, 503),
            answer=ANSWERS.get(key_of(route), route.answer),
        )  # fmt: skip

    def served(self, route: Route, serve: Serve) -> Serve:
        """What serves a route: its resource here, or its rule."""
        rule = _rule_of(route)
        if rule is None:
            return serve
        self._own[key_of(route)] = route, serve
        answers: Callable[[Ask, str | None], Coroutine[Any, Any, Any]] = getattr(self, rule)

        def answer(ask: Ask) -> Deferred[Any]:
            node = ask.query.node
            ask.query = _without_node(ask.query, route.query)
            return Deferred.fromCoroutine(answers(ask, node))

        return answer

    # -- another node asks ---------------------------------------------------------------------

    def asked(self, data: bytes, by: str) -> Deferred[bytes]:
        """What this node answers to the node `by`."""
        return Deferred.fromCoroutine(self._asked(data, by))

    async def _asked(self, data: bytes, by: str) -> bytes:
        try:
            question = msgspec.json.decode(data, type=Question)
            said = await self._answer(question, by)
        except ApiError as error:
            said = refused(error)
        except (BadWish, msgspec.MsgspecError) as error:
            said = refused(ApiError(400, "bad_request", str(error)))
        return msgspec.json.encode(said)

    async def _answer(self, question: Question, by: str) -> Said:
        known = self._own.get(question.route)
        if known is None:
            text = f"{question.route[:80]!r} is nothing that a node answers for others"
            raise ApiError(404, "not_found", text)
        route, serve = known
        ask = ask_of(question, route)
        found = await _result(serve(ask))
        if route.audited and not ask.unchanged:
            path = route.full_path
            for name, value in ask.path.items():
                path = path.replace(f"{{{name}}}", quote(value, safe=""))
            self.node.audit.put(
                ask.caller.name, ask.caller.role, f"node {by}", route.method, path, route.summary,
                ask.before, ask.after,
            )  # fmt: skip
        return answer_of(ask, found)

    # -- we ask --------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        """The nodes that there are, and those whose sessions wait for them."""
        view = self.cluster.view
        return sorted({self.cluster.name, *view.members, *view.homes})

    async def _said(self, name: str, ask: Ask) -> Said:
        """What a node answers; raises ApiError, BadWish, Unanswered."""
        if name == self.cluster.name:
            _, serve = self._own[key_of(ask.route)]
            ask.together = True
            return answer_of(ask, await _result(serve(ask)))
        node = self.cluster.mesh.nodes.get(name)
        if node is None:
            raise Unanswered("it is away, and its sessions wait for it")
        try:
            return said_of(await self.asking.ask(node, question_of(ask)))
        except msgspec.MsgspecError:
            raise Unanswered("its answer makes no sense: is it of another version?") from None

    def _each(self, names: list[str], ask: Ask) -> list[Deferred[Said]]:
        return [Deferred.fromCoroutine(self._said(name, ask)) for name in names]

    async def _one(self, name: str, ask: Ask) -> Said:
        """What the node says that was asked for; raises ApiError."""
        if name not in self._names():
            raise ApiError(404, "not_found", f"{name[:80]!r} is no node that is there")
        try:
            return await self._said(name, ask)
        except Unanswered as why:
            raise _unavailable(f"node {name}: {why}") from None

    # -- rules ---------------------------------------------------------------------------------

    async def of_node(self, ask: Ask, node: str | None) -> Any:
        """What is a node's own: this one's, or that of one which is named."""
        if node is None:
            _, serve = self._own[key_of(ask.route)]
            return await _result(serve(ask))
        return self._told(ask, await self._one(node, ask))

    def _told(self, ask: Ask, said: Said) -> Any:
        """What one node has said, and what it has changed for the audit."""
        if said.change is None:
            ask.unchanged = True
        else:
            ask.changed(*said.change)
        ask.status = said.status
        return said.json()

    async def status(self, ask: Ask, node: str | None) -> Any:
        """This node, and a line for each; or one that is named."""
        found = await self.of_node(ask, node)
        if node is not None:
            return found
        nodes = self._status.nodes(ask)
        return {**msgspec.to_builtins(found), **msgspec.to_builtins(nodes)}

    async def table(self, ask: Ask, node: str | None) -> Any:
        """A page of a table, of all nodes in one order."""
        if ask.route.path == "/subscriptions" and ask.query.client_id is not None:
            return await self.of_client(ask, node)
        return await self._together(
            ask, node, lambda told: _JOINED[ask.route.path](told, ask.query), False
        )

    async def life(self, ask: Ask, node: str | None) -> Any:
        """What became of one message, at all nodes."""
        return await self._together(ask, node, _life, True)

    async def _together(
        self, ask: Ask, node: str | None, joined: Callable[[lists.Told], Json], lacking: bool
    ) -> Any:
        """The answers of all nodes, or of one that is named, as one."""
        if node is not None:
            told, missing = {node: await self._one(node, ask)}, []
        else:
            names = self._names()
            found: Any = await DeferredList(self._each(names, ask), consumeErrors=True)
            heard = _Heard(names, found, lacking)
            told, missing = heard.told, heard.missing
            if not told:
                raise heard.refusal()
            if missing:
                note(ask.request, f"this is without {heard.away()}")
        if len(self._joining.waiting) >= WAITING:
            raise ApiError(503, "busy", "others have asked for tables", {"retry-after": "5"})
        return await self._joining.run(self.node.in_thread, _joined, joined, told, missing)

    async def of_client(self, ask: Ask, node: str | None) -> Json:
        """What is about one client: the node that has it."""
        client_id = ask.path.get("client_id") or (ask.body or ask.query).client_id
        if node is None and client_id in self.node.broker.sessions:
            node = self.cluster.name
        if node is not None:
            said = await self._one(node, ask)
        else:
            node, said = await self._owner(client_id, ask)
        return lists.marked(self._told(ask, said), NODE, node)

    async def _owner(self, client_id: str, ask: Ask) -> tuple[str, Said]:
        """The first of the other nodes that has this client, and what it says."""
        names = [name for name in self._names() if name != self.cluster.name]
        if not names:
            raise ApiError(404, "not_found", f"no client {client_id!r}")
        asked = self._each(names, ask)
        found: Any = await DeferredList(asked, fireOnOneCallback=True, consumeErrors=True)
        if isinstance(found, tuple):
            said, at = found
            return names[at], said
        raise _Heard(names, found, lacking=True).refusal()


def _rule_of(route: Route) -> str | None:
    return None if route.root else RULES.get(key_of(route))


def _with_node(query: type[Struct] | None) -> type[Struct]:
    """A query that may name a node."""
    kind = Annotated[str | None, Meta(description="this node alone")]
    return msgspec.defstruct(
        "OfNode" if query is None else query.__name__, [(NODE, kind, None)],
        bases=None if query is None else (query,), kw_only=True, forbid_unknown_fields=True,
    )  # fmt: skip


def _without_node(query: Any, kind: type[Struct] | None) -> Any:
    """The same query as the route has it by itself: what it is told it may tell."""
    if kind is None:
        return None
    return kind(**{name: getattr(query, name) for name in kind.__struct_fields__})


async def _result(found: Any) -> Any:
    return await found if isinstance(found, Deferred) else found


def _unavailable(text: str) -> ApiError:
    return ApiError(503, "unavailable", text)


class _Heard:
    """What nodes have said to a question: `told` by their names, and who is `missing`, with why.

    `lacking`: one may say 404 where others have it. Raises what is a fault.
    """

    def __init__(
        self, names: list[str], found: list[tuple[bool, Any]], lacking: bool = False
    ) -> None:
        self.told: dict[str, Said] = {}
        self.missing: list[Json] = []
        self.lacking = lacking
        self._refusal: ApiError | None = None
        for name, (done, said) in zip(names, found, strict=True):
            if done:
                self.told[name] = said
            elif isinstance(said.value, ApiError):
                self._refused(name, said.value)
            elif said.check(Unanswered):
                self._misses(name, str(said.value))
            else:
                said.raiseException()

    def _refused(self, name: str, error: ApiError) -> None:
        if self._refusal is None or self._refusal.status == 404:
            self._refusal = error
        if not (self.lacking and error.status == 404):
            self._misses(name, str(error))

    def _misses(self, name: str, why: str) -> None:
        self.missing.append({NODE: name, "reason": why})

    def away(self) -> str:
        """Who is missing, as people read it."""
        return "; ".join(f"node {one[NODE]}: {one['reason']}" for one in self.missing)

    def refusal(self) -> ApiError:
        """What is answered where nobody has told anything."""
        away = self.away()
        if self._refusal is None:
            return _unavailable(away)
        if self.lacking and away and self._refusal.status == 404:
            return _unavailable(f"{self._refusal.message} at those that have answered; {away}")
        return self._refusal


def _joined(
    joined: Callable[[lists.Told], Json], told: dict[str, Said], missing: list[Json]
) -> bytes:
    """One answer of those of nodes, and who is missing in it; in a thread."""
    answers = {name: said.json() for name, said in told.items()}
    return encoded({**joined(answers), "missing": missing}) + b"\n"


def _life(told: lists.Told) -> Json:
    return lists.life_in([{**life, NODE: name} for name, life in told.items()], NODE)
