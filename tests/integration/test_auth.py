"""Authentication of a real broker: users that come and go, tokens that run out, SCRAM."""

from __future__ import annotations

import io
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest

from mqttd.admin.ctl.main import main
from mqttd.secrets.scram import make_keys
from tests.integration.clients import MqttJs
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.needs import needs_program
from tests.support.waiting import until

Ctl = Callable[..., Any]
DEADLINE = 30.0
SECRET = "a secret of at least thirty-two bytes"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    brokers: list[Broker] = []

    def start(**more: Any) -> Broker:
        brokers.append(start_broker(tmp_path, **more))
        return brokers[-1]

    yield start
    for broker in brokers:
        broker.stop()


@pytest.fixture
def ctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """mqttd-ctl, in this process: starting it again and again would take longer than all else."""

    def run(*argv: str, stdin: str = "", status: int = 0) -> Any:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        assert main(["--config", str(tmp_path / "etc/mqttd.conf"), *argv]) == status
        out, err = capsys.readouterr()
        return SimpleNamespace(stdout=out, stderr=err)

    return run


def log_in(broker: Broker, user: str, password: str, reason: int = 0, name: str = "") -> RawClient:
    client = RawClient(broker.port, mq.V5, DEADLINE)
    client.connect(name or user, username=user, password=password.encode(), reason=reason)
    return client


def test_users_come_and_go_while_the_broker_runs(started: Any, ctl: Ctl, tmp_path: Path) -> None:
    broker = started(auth={"anonymous": "never"})
    log_in(broker, "alice", "one", reason=0x86).close()
    assert "the running broker has read it" in ctl("users", "add", "alice", stdin="one\n").stdout
    alice = log_in(broker, "alice", "one")
    ctl("users", "add", "bob", stdin="bob\n")
    alice.ping()  # another user's coming is none of hers
    ctl("users", "passwd", "alice", stdin="two\n")
    alice.expect_close(0x87)
    log_in(broker, "alice", "one", reason=0x86).close()
    alice = log_in(broker, "alice", "two")
    bob = log_in(broker, "bob", "bob")
    ctl("users", "del", "alice")
    alice.expect_close(0x87)
    log_in(broker, "alice", "two", reason=0x86).close()
    # A file that somebody edits is read too; with a mistake in it nothing changes.
    file = tmp_path / "etc/users.conf"
    lines = file.read_text()
    file.write_text("nonsense\n")
    assert "users.conf:1" in ctl("auth", "reload", status=1).stderr
    until(lambda: "users of username" in ctl("alarms").stdout, "an alarm")
    bob.ping()
    file.write_text("\n".join(line for line in lines.splitlines() if "bob" not in line))
    bob.expect_close(0x87, deadline=DEADLINE)
    assert "users of username" not in ctl("alarms").stdout
    for client in (alice, bob):
        client.close()
    modules = json.loads(ctl("auth", "list", "--json").stdout)["modules"]
    assert [module["name"] for module in modules][:2] == ["username", "anonymous"]
    assert modules[0]["ok"] == 3 and modules[0]["latency"]["count"] == modules[0]["hit"]
    assert "auth_revoked" in ctl("metrics").stdout


def test_users_of_mosquitto_are_taken_over(started: Any, ctl: Ctl, tmp_path: Path) -> None:
    program = needs_program("mosquitto_passwd", "mosquitto")
    source = tmp_path / "mosquitto.passwd"
    for create, user in (["-c"], "carol"), ([], "dave"):
        subprocess.run(
            [program, *create, "-b", source, user, f"{user}'s own"],
            check=True, capture_output=True, timeout=DEADLINE,
        )  # fmt: skip
    broker = started()
    assert "took 2 users" in ctl("users", "import", str(source)).stdout
    for user in ("carol", "dave"):
        log_in(broker, user, f"{user}'s own").close()
        log_in(broker, user, "wrong", reason=0x86).close()


def token(**claims: Any) -> str:
    return jwt.encode({"sub": "alice", "exp": time.time() + 600, **claims}, SECRET, "HS256")


def test_a_token_lets_in_with_its_rules_until_it_expires(started: Any) -> None:
    broker = started(
        files={"secret": SECRET + "\n"},
        acl="{deny, all}.\n",
        auth={"chain": ["jwt"], "jwt": {"secret_file": "secret"}},
    )
    client = log_in(broker, "whoever", token(exp=time.time() + 6, acl={"all": ["mine/%u"]}))
    assert client.subscribe("mine/alice", "mine/bob") == [0, 0x87]
    client.expect_close(0x87, deadline=DEADLINE)
    client.close()
    assert broker.says("has expired")
    log_in(broker, "whoever", token(exp=time.time() - 3), reason=0x87).close()
    other = jwt.encode({"sub": "a", "exp": time.time() + 60}, SECRET.upper(), "HS256")
    log_in(broker, "whoever", other, reason=0x87).close()
    assert token()[:20] not in broker.output


def test_a_kicked_client_gets_the_reason_code_asked_for(started: Any, ctl: Ctl) -> None:
    broker = started()
    client = RawClient(broker.port, mq.V5, DEADLINE).connect("c")
    refused = ctl("clients", "kick", "c", "--reason", "0x00", status=1)
    assert "expected a code of DISCONNECT" in refused.stderr
    ctl("clients", "kick", "c", "--reason", "0x87")
    client.expect_close(0x87)
    client.close()


def test_a_ban_ends_connections_and_outlives_a_restart(started: Any, ctl: Ctl) -> None:
    broker = started()
    client = RawClient(broker.port, mq.V5, DEADLINE).connect("rude")
    said = ctl("bans", "add", "client_id", "rude", "--reason", "floods", "--for", "1h").stdout
    assert "ended 1 connection" in said
    client.expect_close(0x98)
    client.close()
    broker.stop()
    broker = started()
    client = RawClient(broker.port, mq.V5, DEADLINE)
    client.connect("rude", reason=0x8A)
    client.close()
    assert broker.says("banned: client_id rude: floods")
    assert "floods" in ctl("bans", "list").stdout
    ctl("bans", "del", "client_id", "rude")
    RawClient(broker.port, mq.V5, DEADLINE).connect("rude").close()
    assert "expected an address" in ctl("bans", "add", "peerhost", "x", status=1).stderr
    assert "expected a time" in ctl(
        "bans", "add", "client_id", "x", "--for", "10", status=1
    ).stderr  # fmt: skip


def test_mqttjs_logs_in_by_scram_twice(started: Any, ctl: Ctl) -> None:
    MqttJs.require()
    broker = started(
        files={"scram.conf": f"alice:{make_keys('pencil')}\n"},
        auth={"chain": ["scram"]},
    )

    def run(user: str, password: str) -> dict[str, Any]:
        done = subprocess.run(
            ["node", Path(__file__).parent / "js/scram.cjs", str(broker.port), user, password],
            capture_output=True, text=True, timeout=DEADLINE,
            env={**os.environ, "NODE_PATH": str(MqttJs.modules)},
        )  # fmt: skip
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    assert run("alice", "pencil") == {
        "result": "ok",
        "steps": [0x18, "connack", "message", 0x18, 0],
    }
    assert run("alice", "pen") == {"result": f"refused: {0x87}", "steps": [0x18]}
    assert run("nobody", "pencil") == {"result": f"refused: {0x87}", "steps": [0x18]}
    # Added on the running broker, from then on she can.
    ctl("users", "add", "carol", "--scram", stdin="ink\n")
    assert run("carol", "ink")["result"] == "ok"
    assert ctl("users", "list", "--scram").stdout.split() == ["alice", "carol"]
