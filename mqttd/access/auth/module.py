"""A module in the authentication chain: what is known of it, and what stands for one not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from zope.interface import implementer

from mqttd.access.auth.guard import Guard
from mqttd.interfaces import IAuthenticator
from mqttd.types import AuthResult, AuthVerdict, ClientInfo, PluginError

__all__ = ["BUILT_IN", "Absent", "Entry", "UnknownModule"]

#: Names of the built-in modules.
BUILT_IN: Final = ("username", "clientid", "certificate", "jwt", "scram", "anonymous")


class UnknownModule(ValueError):
    """No module of that kind has that name, which is `name`."""

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.name = name


@dataclass(slots=True)
class Entry:
    """A registered module with its guard and its place."""

    name: str
    module: Any
    seq: int
    number: int
    guard: Guard
    #: it judges clients by what CONNECT shows
    checks: bool
    #: its ``concerns``, None if it has none
    concerns: Callable[[ClientInfo, bytes | None], bool] | None
    #: the Authentication Method it serves, "" for none
    method: str
    #: the result of its plain yes, which needs no object per client
    plain: AuthResult
    #: Built in and without a back end (`Anonymous`): it cannot fail or wait, so that nothing has
    #: to be guarded against; 4 us of a connection's 13.
    immediate: bool

    def describe(self) -> dict[str, object]:
        try:
            text = str(self.module.description())
        except Exception as error:
            text = f"description failed: {type(error).__name__}"
        return {
            "kind": "auth",
            "name": self.name,
            "seq": self.seq,
            "description": text,
            **self.guard.describe(),
        }


@implementer(IAuthenticator)
class Absent:
    """Stands at the place of a plugin's module that is not there, and fails.

    `why` it is not, for the log.
    """

    def __init__(self, name: str, why: str = "") -> None:
        self.name = name
        self.why = why or f"auth.chain names {name!r}, and no plugin has registered it"

    def init(self, opts: Mapping[str, object]) -> None:
        """There are no options."""

    def check(self, client: ClientInfo, password: bytes | None) -> AuthVerdict:
        """Fails."""
        raise PluginError(self.why)

    def description(self) -> str:
        """Says that it is missing."""
        return f"{self.name}: missing, {self.why}"
