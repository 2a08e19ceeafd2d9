"""Who a client is and what it may do: what access control is made of.

Part of `mqttd.interfaces`, whose rules hold here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from zope.interface import Attribute, Interface

from mqttd.types import (
    Action,
    AuthContinue,
    AuthError,
    AuthOk,
    AuthVerdict,
    ClientInfo,
    Decision,
    Verdict,
)

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred


__all__ = [
    "IAccessControl",
    "IAccessExplainer",
    "IAuthExchange",
    "IAuthenticator",
    "IEnhancedAuthenticator",
]


class IAuthenticator(Interface):
    """A module of the authentication chain: is this client who it says?

    What a module that answers with a Deferred may cost others is bounded by ``[auth.backend]``
    of the configuration: deadline, concurrency, circuit breaker, cache of its answers.  A module
    may narrow or widen that for itself by an attribute ``limits``, a mapping of keys of that
    table to values (seconds, numbers).

    A module may say by an optional method ``concerns(client, password) -> bool``, at once, for whom
    it is there at all: those it is not concerned with go to the next module even while its
    circuit breaker is open.

    What it raises for one client, or answers that is no verdict, refuses that client (0x88), is
    logged at ``error`` and counted; its circuit breaker hears of exceptions that tell of a back end
    which cannot be reached or does not answer (`ConnectionError`, time-outs, Twisted's of
    connections). With an attribute ``blames_back_end = True`` it hears of all: for modules that
    answer with a refusal to whatever a client may show.
    """

    def init(opts: Mapping[str, object]) -> None:
        """Take the options and get ready; called once, before the first `check`.

        :param opts: mapping of option names to values.
        :raises ValueError: an option or a file is wrong; the text names it.  The broker does
            not start.
        """

    def check(client: ClientInfo, password: bytes | None) -> AuthVerdict | Deferred[AuthVerdict]:
        """Give a verdict on `client`.

        :param client: `mqttd.types.ClientInfo`; its ``username`` is None if it gave none.
        :param password: bytes, or None if it gave none.
        :return: `AuthOk`, `AUTH_IGNORE` (the next module is asked) or `AuthError`, of
            `mqttd.types`, or a Deferred of one.  Anything else, an exception and a Deferred
            that has not fired within the deadline refuse the client.
        """

    def description() -> str:
        """One line of text for operators: what this module does, with what."""


class IEnhancedAuthenticator(Interface):
    """A module of the authentication chain for one MQTT 5.0 Authentication Method.

    It is asked for the clients that name its method in CONNECT, and for nobody else; a module may
    provide `IAuthenticator` as well.
    """

    method = Attribute("str: the Authentication Method it serves, such as SCRAM-SHA-256")

    def init(opts: Mapping[str, object]) -> None:
        """Take the options and get ready; as `IAuthenticator.init`."""

    def begin(client: ClientInfo) -> IAuthExchange:
        """Start the authentication of `client`, at CONNECT or again later."""

    def description() -> str:
        """One line of text for operators: what this module does, with what."""


class IAuthExchange(Interface):
    """One enhanced authentication under way; `step` until it answers yes or no."""

    def step(
        data: bytes,
    ) -> AuthContinue | AuthOk | AuthError | Deferred[AuthContinue | AuthOk | AuthError]:
        """Take the client's Authentication Data (b"" if it sent none) and answer.

        :return: `AuthContinue` with data for the client, who answers; `AuthOk`, perhaps with
            ``username`` and ``data``; `AuthError`; or a Deferred of one.  Anything else, an
            exception and a Deferred that is late refuse the client.
        """


class IAccessControl(Interface):
    """A module of the access-control chain: may this client do that?

    A module without the attribute ``depends_on_qos_retain`` (bool) is taken to look at QoS and
    retain flag, and the broker then caches its answers for each combination of them.
    """

    def init(opts: Mapping[str, object]) -> None:
        """Take the options and get ready; as `IAuthenticator.init`."""

    def check_acl(client: ClientInfo, action: Action, topic: str) -> Verdict:
        """Give a verdict, at once: answers are cached until the access epoch changes.

        :param client: `mqttd.types.ClientInfo`.
        :param action: `mqttd.types.Action`.
        :param topic: the topic name to publish to, or the topic filter to subscribe to (of a
            shared subscription the real filter, without ``$share/group/``).
        :return: `Verdict.ALLOW`, `DENY` or `IGNORE` (the next module is asked).  Anything else
            and an exception deny.
        """

    def reload_acl() -> None:
        """Read the rules again, all or nothing.

        :raises Exception: they cannot be read; the module goes on with those it had.
        """

    def description() -> str:
        """One line of text for operators: what this module does, with what."""


class IAccessExplainer(IAccessControl):
    """An access-control module that can name the rule behind its verdict."""

    def decide(client: ClientInfo, action: Action, topic: str) -> Decision:
        """As `check_acl`, and why: returns `mqttd.types.Decision`.

        The broker calls this instead of `check_acl`, so that explaining and enforcing cannot
        differ.
        """
