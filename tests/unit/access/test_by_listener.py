"""A listener's own chain: a plugin's module that it names works there, and refuses before it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from zope.interface import implementer

from mqttd.access.by_listener import AccessByListener, configs_by_listener
from mqttd.access.chain import AccessControl, UnknownModule
from mqttd.config.load import load
from mqttd.interfaces import IAuthenticator
from mqttd.types import AUTH_OK, AuthVerdict, ClientInfo

CONFIG = """
[listener.tcp.apart]
bind = "127.0.0.1:0"
auth_chain = ["acme"]
[auth]
chain = ["anonymous"]
anonymous = "never"
[plugins]
load = ["acme"]
"""


@implementer(IAuthenticator)
class Yes:
    def init(self, opts: Any) -> None: ...

    def check(self, client: ClientInfo, password: bytes | None) -> AuthVerdict:
        return AUTH_OK

    def description(self) -> str:
        return "yes"


@pytest.fixture
def access(tmp_path: Path) -> AccessByListener:
    (tmp_path / "acl.conf").write_text("{allow, all}.\n")
    (tmp_path / "mqttd.conf").write_text(CONFIG)
    config = load(str(tmp_path / "mqttd.conf"), {})
    own = {name: AccessControl(each) for name, each in configs_by_listener(config).items()}
    return AccessByListener(AccessControl(config), own)


def ok(access: AccessByListener, listener: str) -> bool:
    client = ClientInfo("c", "u", "127.0.0.1", 1, listener, 5)
    return bool(access.authenticate(client, b"p").ok)


def test_a_place_that_is_held_refuses_and_nobody_is_asked_again_until_it_is_given(
    access: AccessByListener, tmp_path: Path
) -> None:
    access.register_mod("auth", "acme", Yes(), 0)
    told: list[str] = []
    access.on_change = lambda: told.append("changed")
    access.hold_mod("auth", "acme")
    assert not ok(access, "tcp:apart") and not ok(access, "tcp:default")
    access.register_mod("auth", "other", Yes())  # it comes behind the place that is held
    assert not ok(access, "tcp:default")
    config = load(str(tmp_path / "mqttd.conf"), {})
    own = {name: AccessControl(each) for name, each in configs_by_listener(config).items()}
    access.renew(AccessControl(config), own)
    assert not ok(access, "tcp:apart") and not ok(access, "tcp:default")
    with pytest.raises(ValueError):
        access.register_mod("auth", "other", Yes())
    assert told == []
    access.register_mod("auth", "acme", Yes())
    assert ok(access, "tcp:apart") and ok(access, "tcp:default")
    assert told
    assert [row["name"] for row in access.common.describe()][0] == "acme"


def test_numbers_of_classes_are_of_no_other_class_when_rules_come_while_a_place_is_held(
    access: AccessByListener, tmp_path: Path
) -> None:
    """Nobody is asked again, so what was numbered by the rules before is still about."""
    access.register_mod("auth", "acme", Yes(), 0)
    told: list[str] = []
    access.on_change = lambda: told.append("changed")
    one = ClientInfo("c", "one", "127.0.0.1", 1, "tcp:default", 5)
    other = ClientInfo("d", "other", "127.0.0.1", 1, "tcp:default", 5)
    before = access.class_of(one)
    assert before >= 0 and access.constant(before) and access.judge(before, 0, False, "a") == 1
    access.hold_mod("auth", "acme")
    (tmp_path / "acl.conf").write_text('{allow, {user, "other"}, all, ["secret"]}.\n')
    config = load(str(tmp_path / "mqttd.conf"), {})
    access.renew(AccessControl(config), {})
    assert told == []
    assert access.class_of(other) != before
    assert not access.constant(before) and not access.judge(before, 0, False, "secret")
    access.register_mod("auth", "acme", Yes())
    assert told
    number = access.class_of(other)
    assert number >= 0 and access.judge(number, 0, False, "secret") == 1


def test_a_place_that_is_given_up_is_nobodys(access: AccessByListener) -> None:
    access.register_mod("auth", "acme", Yes(), 0)
    access.register_mod("auth", "other", Yes())
    access.hold_mod("auth", "acme")
    told: list[str] = []
    access.on_change = lambda: told.append("changed")
    access.release_mod("auth", "acme")
    assert told and ok(access, "tcp:default")
    assert not ok(access, "tcp:apart")  # whose chain names it


def test_a_module_of_a_plugin_works_at_the_listener_whose_chain_names_it(
    access: AccessByListener,
) -> None:
    assert not ok(access, "tcp:apart")
    access.register_mod("auth", "acme", Yes())
    assert ok(access, "tcp:apart")
    access.unregister_mod("auth", "acme")
    assert not ok(access, "tcp:apart")
    with pytest.raises(UnknownModule):
        access.unregister_mod("auth", "acme")


def test_chains_of_listeners_are_described_and_counted_too(access: AccessByListener) -> None:
    access.register_mod("auth", "acme", Yes())
    assert ok(access, "tcp:apart") and ok(access, "tcp:other")
    auth = [(e["listener"], e["name"]) for e in access.describe() if e["kind"] == "auth"]
    assert auth == [("", "anonymous"), ("", "acme"), ("tcp:apart", "acme")]
    alone = access.common.counters()["auth_acme_hits"]
    apart = access.own["tcp:apart"].counters()["auth_acme_hits"]
    assert apart and access.counters()["auth_acme_hits"] == alone + apart


def test_a_listener_gets_another_chain_and_gives_it_back(access: AccessByListener) -> None:
    told: list[str] = []
    access.on_change = lambda: told.append("changed")
    access.register_mod("auth", "acme", module := Closed())
    told.clear()
    assert ok(access, "tcp:apart")
    before = access.own["tcp:apart"]
    access.put("tcp:late", AccessControl(before.config))
    assert told == ["changed"]
    assert ok(access, "tcp:late")
    access.put("tcp:apart", None)
    access.put("tcp:late", AccessControl(before.config))
    assert len(told) == 3
    assert ok(access, "tcp:late") and ok(access, "tcp:apart")
    assert module.closed == 0  # it serves the others
    assert not before.authenticate(ClientInfo("c", "u", "127.0.0.1", 1, "tcp:apart", 5), b"p").ok
    access.put("tcp:never", None)
    assert len(told) == 3
    access.own["tcp:late"].on_change()
    assert len(told) == 4
    access.unregister_mod("auth", "acme")
    assert not ok(access, "tcp:late") and not ok(access, "tcp:apart")
    access.put("tcp:late", AccessControl(before.config))
    assert not ok(access, "tcp:late")


class Closed(Yes):
    closed = 0

    def close(self) -> None:
        self.closed += 1
