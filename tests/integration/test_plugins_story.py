"""The tutorial of plugins, followed word by word on a running broker that has work to do.

What a reader types, writes and is shown is taken from the page itself. Meanwhile clients publish
and subscribe: not one connection may drop, not one message be lost.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.needs import needs_program

PAGE = Path(__file__).parents[2] / "docs/tutorial/02-first-plugin.md"
BIN = Path(sys.executable).parent
BLOCK = re.compile(
    r"^(?:<!-- (?P<what>file|method|line): (?P<file>[\w/.]+)(?:, after (?P<after>.*?))? -->\n)?"
    r"```(?P<lang>python|sh|text)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
METHOD = re.compile(r"^    def publish\(.*?(?=^    def (?!publish))", re.MULTILINE | re.DOTALL)
CLIENTS = 3


class Load(threading.Thread):
    """A client that publishes to itself, and misses nothing."""

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__(daemon=True)
        self.client = RawClient(broker.port, mq.V5, deadline=20)
        self.client.connect(name)
        self.topic = f"load/{name}"
        self.client.subscribe((self.topic, 1))
        self.messages = 0
        self.worst = 0.0
        self.error: BaseException | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopping.wait(0.005):
                start = time.monotonic()
                self.client.publish(self.topic, b"%d" % self.messages, qos=1)
                got = self.client.message(topic=self.topic)
                assert got.payload == b"%d" % self.messages
                self.worst = max(self.worst, time.monotonic() - start)
                self.messages += 1
            self.client.ping()
        except BaseException as error:
            self.error = error


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    (tmp_path / "etc/plugins").mkdir(parents=True)
    (tmp_path / "etc/plugins").chmod(0o755)
    broker = start_broker(tmp_path)
    try:
        yield broker
    finally:
        broker.stop()


def write(directory: Path, block: re.Match[str]) -> None:
    """What the reader writes: a file, a method in place of another, a line below another."""
    path = directory / block["file"]
    if block["what"] == "file":
        path.write_text(block["text"])
        return
    text = path.read_text()
    if block["what"] == "method":
        changed = METHOD.sub(lambda _: block["text"] + "\n", text)
    else:
        changed = text.replace(f"{block['after']}\n", f"{block['after']}\n{block['text']}")
    assert changed != text
    path.write_text(changed)


def typed(directory: Path, command: str, port: int) -> str:
    """What the reader sees of a command; one that begins with ! fails."""
    words = shlex.split(command.removeprefix("! "))
    words = [str(port) if word == "1883" else word for word in words]
    if words[0] == "mqttd-ctl":
        words[0] = str(BIN / words[0])
    done = subprocess.run(
        words, cwd=directory, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode != 0) == command.startswith("! "), f"{command}: {done}"
    return done.stdout + done.stderr


@pytest.mark.timeout(120)
def test_a_plugin_is_broken_and_repaired_under_load_and_no_client_notices(
    broker: Broker, tmp_path: Path
) -> None:
    needs_program("mosquitto_pub", "mosquitto-clients")
    load = [Load(broker, f"client-{number}") for number in range(CLIENTS)]
    for client in load:
        client.start()
    shown = ""
    steps = 0
    text = PAGE.read_text("utf-8")
    text = text[text.index("## 1.") :]
    for block in BLOCK.finditer(text):
        if block["what"]:
            write(tmp_path, block)
        elif block["lang"] == "sh":
            shown = "".join(
                typed(tmp_path, line, broker.port) for line in block["text"].splitlines()
            )
            steps += 1
        elif block["lang"] == "text":
            for line in block["text"].splitlines():
                assert re.sub(" +", " ", line) in re.sub(" +", " ", shown), shown
        assert not [client.error for client in load if client.error], broker.output
    assert steps == 10
    for client in load:
        client.stopping.set()
    for client in load:
        client.join(30)
        assert client.error is None, client.error
        assert client.messages > 100
    worst = max(client.worst for client in load)
    print(f"{sum(client.messages for client in load)} messages, {worst * 1000:.0f} ms at worst")
    # The callback would block for 5 s each time; a loaded machine gets its seconds.
    assert worst < 3.0
    assert broker.says("alarm=quarantine.counter")
    assert broker.output.count("takenover") == 0
    assert "not loaded" in typed(tmp_path, "! mqttd-ctl counter count", broker.port)
