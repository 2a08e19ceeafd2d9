"""The same targets under Atheris (libFuzzer): inputs that reach new code are kept and mutated on.

    pip install mqttd[fuzz]
    MQTTD_PURE=1 python -m fuzz.coverage channel -max_total_time=60 -seed=1 corpus/

`codec` holds a stream that is fed whole against the same stream cut in two; `channel` feeds it to a
connection of a broker in memory, behind a good CONNECT or as it is, with a witness that subscribed
to everything. `frames` and `proxy` are the layers below: a WebSocket's frames and a PROXY header,
whole and cut in two. What is behind the name goes to libFuzzer. It sees branches of Python sources
only, hence MQTTD_PURE; the other modules of `fuzz` need no package, and are reproduced by a seed.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from types import FunctionType

os.environ["MQTTD_PURE"] = "1"

import atheris  # noqa: E402

from fuzz import proxy as headers  # noqa: E402
from fuzz import websocket  # noqa: E402
from fuzz.codec import outcome  # noqa: E402
from mqttd.codec.packets import Subscribe, Subscription  # noqa: E402
from mqttd.codec.parser import Parser  # noqa: E402
from mqttd.transports.proxy import ProxyLayer  # noqa: E402
from tests.cases.packets import CASES, connect  # noqa: E402
from tests.support.memory import MemoryBroker  # noqa: E402

__all__ = ["TARGETS", "channel", "codec", "frames", "main", "proxy"]


def codec(data: bytes) -> None:
    """A stream means the same however it is cut; bad bytes raise MqttError and nothing else."""
    if len(data) < 3:
        return
    version = 3 + data[0] % 3
    role = "client" if data[0] & 0x80 else "server"
    cut = data[1] % (len(data) - 1)
    stream = data[2:]
    whole = outcome(Parser(version, 1000, role), [stream])
    assert whole == outcome(Parser(version, 1000, role), [stream[:cut], stream[cut:]])


def channel(data: bytes) -> None:
    """A connection may end at any byte; the broker and its other client go on."""
    if len(data) < 3:
        return
    node = MemoryBroker()
    witness = node.connect("witness")
    witness.send(Subscribe(1, [Subscription("#", 2)]))
    client = node.client(4)
    if data[0] & 0x80:
        client.feed(connect(3 + data[0] % 3))
    cut = data[1] % (len(data) - 1)
    client.feed(data[2 : 2 + cut])
    client.feed(data[2 + cut :])
    node.advance(2000)
    client.drop()
    witness.take()
    assert not witness.closed


def frames(data: bytes) -> None:
    """A stream of WebSocket frames means the same however it is cut."""
    if len(data) < 2:
        return
    cut = data[0] % len(data)
    stream = data[1:]
    assert websocket.run(stream, [cut, len(stream)]) == websocket.run(stream, [len(stream)])


def proxy(data: bytes) -> None:
    """A PROXY header is taken, waited for or refused, the same however it is cut."""
    if len(data) < 2:
        return
    cut = data[0] % len(data)
    stream = data[1:]
    ends = []
    for pieces in ([stream], [stream[:cut], stream[cut:]]):
        layer = ProxyLayer(lambda header: header)
        passed = b"".join(layer.received(piece) for piece in pieces if not layer.ended)
        # The reason names what was seen, which depends on the cut.
        ends.append((passed, layer.done, bool(layer.ended)))
    assert ends[0] == ends[1]


TARGETS = {"codec": codec, "channel": channel, "frames": frames, "proxy": proxy}


def first_inputs(name: str) -> list[bytes]:
    """What the corpus begins with."""
    rng = random.Random(1)
    if name == "frames":
        return [b"\0" + websocket.frames(rng) for _ in range(50)]
    if name == "proxy":
        return [b"\0" + headers.header(rng)[0] for _ in range(50)]
    return [bytes([0x80 | case.version - 3, 0]) + case.wire for case in CASES]


def instrument() -> None:
    """Count the branches of mqttd's functions; beside compiled modules import hooks miss them."""
    for found in gc.get_objects():
        if isinstance(found, FunctionType) and str(found.__module__).startswith("mqttd."):
            atheris.instrument_func(found)


def main() -> None:
    """Hand a target to libFuzzer, with good inputs to begin with."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python -m fuzz.coverage {{{','.join(TARGETS)}}} [libFuzzer options]")
    name = sys.argv.pop(1)
    folders = [word for word in sys.argv[1:] if not word.startswith("-")]
    for folder in folders[:1]:
        os.makedirs(folder, exist_ok=True)
        for number, data in enumerate(first_inputs(name)):
            if len(data) < 1000:
                with open(os.path.join(folder, f"case-{number}"), "wb") as file:
                    file.write(data)
    instrument()
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
