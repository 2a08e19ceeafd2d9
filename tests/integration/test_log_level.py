"""`[log] level` in the configuration decides what a broker writes."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEADLINE = 30.0  # seconds


@pytest.mark.parametrize(("level", "tells"), [("info", True), ("error", False)])
def test_a_broker_writes_what_is_important_enough(tmp_path: Path, level: str, tells: bool) -> None:
    config = tmp_path / "mqttd.conf"
    config.write_text(
        f'[node]\ndata_dir = "{tmp_path}/data"\n[log]\nlevel = "{level}"\n'
        '[listener.tcp.default]\nbind = "127.0.0.1:0"\n'
    )
    (tmp_path / "acl.conf").write_text("{allow, all}.\n")
    output = tmp_path / "output"
    twistd = Path(sys.executable).parent / "twistd"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [twistd, "-n", "--pidfile=", "mqttd", "--config", config],
            cwd=Path(__file__).parents[2],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    try:
        # Its admin socket answers when all that a start says has been said.
        until = time.monotonic() + DEADLINE
        while not answers(tmp_path / "data" / "mqttd.sock"):
            assert process.poll() is None and time.monotonic() < until, output.read_text()
            time.sleep(0.05)
    finally:
        process.terminate()
        process.wait(DEADLINE)  # and with it the log is written
    told = output.read_text()
    assert "mqttd ready: " in told  # whatever the level
    assert ("mqttd stopped" in told) is tells
    assert "Traceback" not in told


def answers(path: Path) -> bool:
    """Whether an HTTP server behind this Unix socket answers a request."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(DEADLINE)
        try:
            client.connect(str(path))
            client.sendall(b"GET /api/v1/status HTTP/1.0\r\n\r\n")
            return client.recv(100).startswith(b"HTTP/1")
        except OSError:
            return False
