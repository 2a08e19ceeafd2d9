"""Every route of a real broker called as its OpenAPI document says, and as it does not.

Schemathesis makes the requests of the document; nothing may be answered with a status from 500,
nor with a status, a media type or a body that the document does not tell. A few hundred cases, most
of them at a node, which has all routes there are, and with MQTTD_LONG=1 at least 10,000.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.broker import Broker, start_broker
from tests.support.etcd import start_etcd
from tests.support.needs import missing
from tests.support.nodes import start_node

#: Wrong tokens are answered at once, nobody asks too often, topics are counted for no time, and a
#: broker that is drained stays: each has tests of its own.
PROGRAM = """
from mqttd.admin.http import slow
slow.FIRST = 0.0
service.control.api.rate.rate = 1e9
service.drain.done = lambda: None
service.topic_figures._later = lambda seconds, call: service.reactor.callLater(0, call)
"""

#: 413, a body that is too large, is a refusal, which schemathesis does not know. A broker that lets
#: nobody in is not ready, 503, as its document tells: one that is drained is asked.
CONFIG = """
[checks]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422]

[[operations]]
include-path = "/health/ready"
checks.not_a_server_error.expected-statuses = ["2xx", "4xx", "503"]
"""

TOKEN = "t" * 32
LONG = bool(os.environ.get("MQTTD_LONG"))


@pytest.mark.timeout(3600 if LONG else 240)
def test_every_answer_is_in_the_document(tmp_path: Path) -> None:
    asked(tmp_path, examples=200 if LONG else 1)


@pytest.mark.timeout(3600 if LONG else 240)
def test_every_answer_of_a_node_is_in_its_document(tmp_path: Path) -> None:
    etcd = start_etcd(tmp_path / "etcd")
    try:
        start = partial(start_node, tmp_path, etcd, "a")
        # It would end.
        asked(tmp_path, "--exclude-path", "/api/v1/cluster/leave", start=start,
              examples=200 if LONG else 4)  # fmt: skip
    finally:
        etcd.stop()


def asked(
    tmp_path: Path,
    *more: str,
    examples: int,
    start: Callable[..., Broker] | None = None,
) -> None:
    """Have schemathesis ask a broker; `more` of its command line."""
    if importlib.util.find_spec("schemathesis") is None:
        missing("schemathesis", "pip install schemathesis")
    if start is None:
        start = partial(start_broker, tmp_path)
    broker = start(
        files={"tokens": TOKEN + "\n"}, program=PROGRAM,
        admin={"tcp": {"bind": "127.0.0.1:0", "token_file": "tokens"}},
    )  # fmt: skip
    try:
        (line,) = [line for line in broker.lines if "HTTP interface on port" in line]
        url = line.split()[-1]
        (tmp_path / "schemathesis.toml").write_text(CONFIG)
        done = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/api/v1/openapi.json",
             "--header", f"Authorization: Bearer {TOKEN}",
             # It does not end; see test_api_events.
             "--exclude-path", "/api/v1/events",
             # It writes to any path there is; see test_storage and test_admin.
             "--exclude-path", "/api/v1/store/backup",
             # A text may be one that means nothing: a cursor, a filter with a mistake.
             "--exclude-checks", "positive_data_acceptance",
             "--max-examples", str(examples),
             "--phases", "coverage,fuzzing", "--request-timeout", "20", "--seed", "16",
             "--suppress-health-check", "all", "--no-color", *more],
            capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        told = "\n".join(line[:500] for line in done.stdout.splitlines())
        assert done.returncode == 0, told[-40_000:] + done.stderr[-2000:]
        assert "Traceback" not in broker.output
    finally:
        broker.stop()
