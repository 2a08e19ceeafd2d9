"""The conformance classes pass what is right and name what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from zope.interface import implementer

from mqttd.broker.sessions.alone import Alone, Forgets
from mqttd.interfaces import IAccessControl, IAuthenticator
from mqttd.testing import (
    AccessControlConformance,
    AuthenticatorConformance,
    RegistryConformance,
    RetainedStoreConformance,
    SessionStoreConformance,
    client_info,
)
from mqttd.types import (
    ACTION_PUBLISH,
    AUTH_IGNORE,
    Action,
    AuthError,
    AuthOk,
    AuthVerdict,
    ClientInfo,
    SessionState,
    Verdict,
)
from tests.unit.testing.stores import Member, MemoryRetained, MemorySessions, Table


class TestSessions(SessionStoreConformance):
    def setup_method(self) -> None:
        super().setup_method()
        self.place: dict[str, SessionState] = {}

    def make(self) -> MemorySessions:
        return MemorySessions(self.place)


class TestRetained(RetainedStoreConformance):
    durable = False

    def make(self) -> MemoryRetained:
        return MemoryRetained()


class TestForgets(SessionStoreConformance):
    def make(self) -> Forgets:
        return Forgets()


class TestAlone(RegistryConformance):
    def make(self) -> Alone:
        return Alone()


class TestMembers(RegistryConformance):
    def setup_method(self) -> None:
        super().setup_method()
        self.table = Table()

    def make(self) -> Member:
        return Member("n1/0", self.table)

    def make_peer(self) -> Member:
        return Member("n2/0", self.table)


@implementer(IAuthenticator)
class OnePassword:
    def init(self, opts: Mapping[str, object]) -> None:
        self.password = opts["password"]

    def check(self, client: ClientInfo, password: bytes | None) -> AuthVerdict:
        if client.username is None:
            return AUTH_IGNORE
        if client.username == "alice" and password == self.password:
            return AuthOk()
        return AuthError("wrong name or password")

    def description(self) -> str:
        return "knows alice"


class TestOnePassword(AuthenticatorConformance):
    options = {"password": b"alices"}
    accepted = (("alice", b"alices"),)
    refused = (("bob", b"alices"), (None, None))

    def make(self) -> OnePassword:
        return OnePassword()


@implementer(IAccessControl)
class OwnTopics:
    depends_on_qos_retain = False

    def init(self, opts: Mapping[str, object]) -> None:
        pass

    def check_acl(self, client: ClientInfo, action: Action, topic: str) -> Verdict:
        own = f"own/{client.client_id}"
        return Verdict.ALLOW if topic == own else Verdict.IGNORE

    def reload_acl(self) -> None:
        pass

    def description(self) -> str:
        return "own topics"


class TestOwnTopics(AccessControlConformance):
    cases = (
        (client_info("alice"), Action(ACTION_PUBLISH, 1), "own/alice", Verdict.ALLOW),
        (client_info("alice"), Action(ACTION_PUBLISH, 1), "own/bob", Verdict.IGNORE),
    )

    def make(self) -> OwnTopics:
        return OwnTopics()


def run(suite: Any, test: str) -> None:
    suite.setup_method()
    try:
        getattr(suite, test)()
    finally:
        suite.teardown_method()


def test_a_store_that_forgets_is_found() -> None:
    class Forgets(SessionStoreConformance):
        def make(self) -> MemorySessions:
            return MemorySessions()

    with pytest.raises(AssertionError):
        run(Forgets(), "test_what_was_saved_is_there_byte_for_byte")


def test_a_store_that_takes_changes_of_an_older_owner_is_found() -> None:
    class Obeys(MemorySessions):
        def _current(self, client_id: str, epoch: int) -> SessionState | None:
            return self.place.get(client_id)

    class ObeysConformance(SessionStoreConformance):
        def make(self) -> Obeys:
            return Obeys()

    with pytest.raises(AssertionError, match="StaleEpoch"):
        run(ObeysConformance(), "test_an_older_owner_changes_nothing")


def test_a_registry_with_two_owners_is_found() -> None:
    class Split(RegistryConformance):
        def make(self) -> Member:
            return Member("n1/0", Table())

        def make_peer(self) -> Member:
            return Member("n2/0", Table())

    for test in (
        "test_a_claim_takes_over_with_the_state",
        "test_the_last_of_many_claims_owns_it",
    ):
        with pytest.raises(AssertionError):
            run(Split(), test)


def test_a_store_without_a_method_is_found_by_name() -> None:
    class Half(SessionStoreConformance):
        def make(self) -> MemoryRetained:
            return MemoryRetained()

    with pytest.raises(Exception, match="ISessionStore"):
        run(Half(), "test_it_provides_its_interface")


def test_an_authenticator_that_lets_everybody_in_is_found() -> None:
    class Open(OnePassword):
        def check(self, client: ClientInfo, password: bytes | None) -> AuthVerdict:
            return AuthOk()

    class OpenConformance(AuthenticatorConformance):
        options = {"password": b"alices"}
        accepted = (("alice", b"alices"),)

        def make(self) -> Open:
            return Open()

    for test in (
        "test_those_it_does_not_know_are_not",
        "test_hostile_credentials_get_a_verdict_and_no_entry",
    ):
        with pytest.raises(AssertionError):
            run(OpenConformance(), test)


def test_an_authenticator_that_tells_the_password_is_found() -> None:
    class Tells(OnePassword):
        def check(self, client: ClientInfo, password: bytes | None) -> AuthVerdict:
            return AuthError(f"wrong password {password!r}")

    class TellsConformance(AuthenticatorConformance):
        options = {"password": b"alices"}

        def make(self) -> Tells:
            return Tells()

    with pytest.raises(AssertionError, match="password is in the verdict"):
        run(TellsConformance(), "test_it_tells_no_password")


def test_rules_that_lie_about_qos_are_found() -> None:
    class Lies(OwnTopics):
        def check_acl(self, client: ClientInfo, action: Action, topic: str) -> Verdict:
            return Verdict.DENY if action.qos else Verdict.ALLOW

    class LiesConformance(AccessControlConformance):
        def make(self) -> Lies:
            return Lies()

    with pytest.raises(AssertionError, match="different QoS"):
        run(LiesConformance(), "test_it_says_truly_whether_qos_and_retain_matter")
