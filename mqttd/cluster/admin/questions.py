"""What one node asks another for an operator, and what that answers: as bytes, and out of them.

    Ask --> Question --JSON--> the other node's own route --> Said --JSON--> answer, or ApiError

The node that is asked first has found out who asks; the other holds to the role that it is told.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from mqttd.admin.http.audit import shortened
from mqttd.admin.http.requests import ROLES, ApiError, Caller, Problem, encoded, problem
from mqttd.admin.http.route import Ask, Route

__all__ = [
    "NODE",
    "Question",
    "Said",
    "answer_of",
    "ask_of",
    "key_of",
    "question_of",
    "refused",
    "said_of",
]

#: The parameter that chooses a node, and the column that names one.
NODE: Final = "node"


class Question(Struct):
    """A request to a route, and who makes it."""

    route: str
    path: dict[str, str]
    query: dict[str, Any]
    body: Any
    name: str
    role: str


class Said(Struct):
    """What a node has answered: JSON, or a `Problem` from status 400 on."""

    status: int
    body: msgspec.Raw
    #: What there was before a change, and is after it.
    change: tuple[Any, Any] | None = None

    def json(self) -> Any:
        """What is in it."""
        return msgspec.json.decode(self.body)


def key_of(route: Route) -> str:
    """A route by its method and path."""
    return f"{route.method} {route.path}"


def question_of(ask: Ask) -> bytes:
    """What was asked here, for another node."""
    query = {} if ask.query is None else msgspec.to_builtins(ask.query)
    given = {name: value for name, value in query.items() if value is not None}
    body = None if ask.body is None else msgspec.to_builtins(ask.body)
    caller = ask.caller
    return msgspec.json.encode(
        Question(key_of(ask.route), ask.path, given, body, caller.name, caller.role)
    )


def ask_of(question: Question, route: Route) -> Ask:
    """What another node asks of a route here; raises ApiError where that cannot be."""
    if question.role not in ROLES:
        raise ApiError(403, "forbidden", f"there is no role {question.role[:80]!r}")
    caller = Caller(question.name, question.role, limited=False)
    if not caller.may(route.role):
        text = f"this takes the role {route.role}, {caller.name} has {caller.role}"
        raise ApiError(403, "forbidden", text)
    try:
        if question.path.keys() != set(route.parameters):
            raise msgspec.ValidationError(f"the path has not {route.parameters}")
        query = None if route.query is None else msgspec.convert(question.query, route.query)
        body = None if route.body is None else msgspec.convert(question.body, route.body)
    except msgspec.ValidationError as error:
        raise ApiError(400, "bad_request", str(error)) from None
    ask = Ask(None, caller, route, question.path, query, body)
    ask.together = True
    return ask


def refused(error: ApiError) -> Said:
    """A refusal as it is answered."""
    return Said(error.status, msgspec.Raw(problem(error.status, error.code, error.message)))


def said_of(data: bytes) -> Said:
    """What another node has answered; raises ApiError for a refusal, MsgspecError for nonsense."""
    said = msgspec.json.decode(data, type=Said)
    if said.status >= 400:
        told = msgspec.json.decode(said.body, type=Problem)
        raise ApiError(said.status, told.code, told.detail)
    return said


def answer_of(ask: Ask, found: Any) -> Said:
    """What a route here has found for another node."""
    changed = ask.route.audited and not ask.unchanged
    change = (shortened(ask.before), shortened(ask.after)) if changed else None
    return Said(ask.status, msgspec.Raw(encoded(found)), change)
