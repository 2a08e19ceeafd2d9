"""`mqttd-ctl events`: what it prints of what clients have said."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

from mqttd.pipeline.log.tools import run
from mqttd.pipeline.log.writer import Writer
from tests.unit.pipeline.logs import NODE, fill


def test_what_clients_say_gives_no_commands_to_the_terminal_of_a_dump(tmp_path: Path) -> None:
    """C1 is one to many of them, U+202E turns text round, U+2028 and U+0085 are ends of lines."""
    said = "t/\x9b31m\x7f\u202e\u2028\x85\U000e0001é"
    writer = Writer(str(tmp_path), NODE)
    fill(writer, 1, 1, topic=said, payload=said.encode())
    writer.close()
    out = io.StringIO()
    options = argparse.Namespace(
        events_command="dump", from_=None, to_=None, node=None, event=None, filter=None
    )
    assert run(options, str(tmp_path), out) == 0
    (line,) = out.getvalue().splitlines()
    assert line.isprintable() and "é" in line
    found = json.loads(line)
    assert found["topic"] == found["payload"] == said
