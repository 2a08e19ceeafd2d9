"""What lies in the directory in which a broker is begun is not run: it may be anybody's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker import start_broker
from tests.support.client import RawClient

#: Modules that processes of a broker import, of the standard library, of others, and of its own.
NAMES = (
    "h2",
    "json",
    "queue",
    "attr",
    "msgspec",
    "mqttd",
    "mqttd_plugins",
    "zope",
    "sitecustomize",
)
SAYS = "import os\nopen(os.path.join({path!r}, 'ran-' + __name__), 'w').close()\n"


@pytest.mark.parametrize("workers", [1, 2])
def test_17_modules_beside_it_are_not_imported(tmp_path: Path, workers: int) -> None:
    """Workers, children of plugins, and those of the event log were begun with it in their path."""
    here = tmp_path / "here"
    here.mkdir()
    for name in NAMES:
        (here / f"{name}.py").write_text(SAYS.format(path=str(tmp_path)))
    broker = start_broker(
        tmp_path, directory=here, node={"workers": workers}, plugins={"load": ["spark"]}
    )
    try:
        client = RawClient(broker.port).connect("c")
        client.publish("t", b"x", qos=1)
        client.close()
    finally:
        broker.stop()
    assert not list(tmp_path.glob("ran-*")), broker.output
