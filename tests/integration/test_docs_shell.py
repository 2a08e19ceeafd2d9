"""What the pages tell a reader to type is typed, at a running broker.

A page's blocks are run in their order, in the broker's folder: files that a page speaks of are
there, `/etc/mqttd`, `/etc/mosquitto` and the like are folders of the test's, passwords that are
asked for are given. A block that cannot be run here says so, and why, in a comment before it:

    <!-- not run: needs a certificate of example.com -->
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.servers import free_port

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
BLOCK = re.compile(r"(?:^<!-- not run: (.+?) -->\n)?^```(?:sh|bash)\n(.*?)^```$", re.M | re.S)

#: Pages whose blocks another test runs.
ELSEWHERE = {
    "docs/tutorial/01-first-messages.md": "tests/integration/test_docs_examples.py",
    "docs/tutorial/02-first-plugin.md": "tests/integration/test_plugins_story.py",
    "docs/howto/spark-pipelines.md": "tests/integration/test_spark_pipelines.py",
    "docs/tutorial/03-inside-your-program.md": "tests/integration/test_embed.py",
    "docs/howto/run-as-a-daemon.md": "tests/packaging/test_container.py",
    "docs/howto/write-acl-rules.md": "tests/integration/test_docs_examples.py",
}
#: Places on a machine, and where they are here.
PLACES = {
    "/etc/mqttd": "etc",
    "/etc/mosquitto": "mosquitto",
    "/var/backups": "backups",
    "--into etc": "--into imported",
}
#: Asks for what a user would be asked, unless it comes through a pipe; and finds the broker.
PRELUDE = """
mqttd-ctl() {
    if [ "$1" = --config ] || [ "$1" = --url ]; then set -- "$@"
    else set -- --config etc/mqttd.conf "$@"; fi
    if [ -p /dev/stdin ]; then command mqttd-ctl "$@"
    else printf '%s\\n' "$PASSWORD" | command mqttd-ctl "$@"; fi
}
"""

#: The pages' address of `admin.tcp.bind`.
ADMIN = "127.0.0.1:8081"

RULES = """
{allow, {user, "dashboard"}, subscribe, ["$SYS/#"]}.
{allow, all, pubsub, ["plant/#", "test/#"]}.
{deny, all}.
"""
NEXT_RULES = (
    '{allow, {user, "dashboard"}, subscribe, ["#"]}.\n{allow, all, publish, ["plant/#"]}.\n'
)
MOSQUITTO = "listener 1883\nallow_anonymous false\npassword_file /etc/mosquitto/passwd\n"
PASSWD = (
    "carol:$7$101$c2FsdHNhbHRzYWx0$"
    "1sUWg+eSgeSEZPQbMQWSqAsM0WtD3I2LIhzhNTcmkNZQp5lKLHPLb4rpgmLLAsG0XgNyuYAVA6MPrxyjEYpsHA==\n"
)


def pages() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if BLOCK.search(page.read_text("utf-8"))]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


HERE = [page for page in pages() if name(page) not in ELSEWHERE]


def test_a_page_that_is_run_elsewhere_is() -> None:
    assert set(ELSEWHERE) <= {name(page) for page in pages()}
    for test in ELSEWHERE.values():
        assert (ROOT / test).exists()


@pytest.fixture
def admin() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def broker(tmp_path: Path, admin: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setenv("MQTTD__ACL__SHADOW__FILE", "acl-next.conf")
    tables: dict[str, Any] = {
        "auth": {"username": {"file": "users.conf"}, "scram": {"file": "scram.conf"},
                 "chain": ["username", "scram", "anonymous"]},
        "admin": {"tcp": {"bind": admin, "token_file": "tokens"}},
    }  # fmt: skip
    (tmp_path / "mosquitto").mkdir()
    (tmp_path / "backups").mkdir()
    (tmp_path / "mosquitto/mosquitto.conf").write_text(MOSQUITTO)
    (tmp_path / "mosquitto/passwd").write_text(PASSWD)
    (tmp_path / "acl-next.conf").write_text(NEXT_RULES)
    (tmp_path / "pw").write_text("secret\n")
    files = {"acl-next.conf": NEXT_RULES, "tokens": "t" * 64 + "\n", "scram.conf": "",
             "users.conf": ""}  # fmt: skip
    broker = start_broker(tmp_path, acl=RULES, files=files, **tables)
    with ExitStack() as stack:
        stack.callback(broker.stop)
        for client_id in ("pump-1", "pump-7", "debugger"):
            client = RawClient(broker.port, mq.V5)
            stack.callback(client.close)
            client.connect(client_id)
            client.subscribe(("plant/#", 0))
        yield broker


@pytest.mark.parametrize("page", HERE, ids=name)
def test_what_a_page_says_can_be_typed(
    page: Path, broker: Broker, admin: str, tmp_path: Path
) -> None:
    environ = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PASSWORD": "a good password",
        "BASH_ENV": "",
    }
    for reason, block in BLOCK.findall(page.read_text("utf-8")):
        if reason:
            continue
        for place, here in {**PLACES, ADMIN: admin}.items():
            block = block.replace(place, here)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", PRELUDE + block],
            cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=50,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
