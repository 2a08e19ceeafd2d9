"""Programs with a broker in them, run by test_embed in a process of its own.

    python -m tests.integration.embed_programs asyncio|twisted

Each is a coroutine that asserts what it sees; one after the other, and "ok NAME" for each.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from mqttd.embed import Broker, NotRunning

PROGRAMS: dict[str, Callable[[], Awaitable[None]]] = {}


def program(function: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    PROGRAMS[function.__name__] = function
    return function


async def turn() -> None:
    """Let everything happen that is due."""
    from twisted.internet import reactor
    from twisted.internet.task import deferLater

    waiting: Any = deferLater(reactor, 0.01, lambda: None)
    if sys.argv[1] == "asyncio":
        waiting = waiting.asFuture(asyncio.get_running_loop())
    await waiting


@program
async def messages_reach_subscriptions_in_order() -> None:
    async with Broker() as broker:
        retained = await broker.publish("r/1", b"kept", retain=True)
        assert retained == 0
        readings = broker.subscribe("+/1")
        for number in range(5):
            assert await broker.publish("t/1", str(number), qos=number % 3) == 1
        got = []
        async for message in readings:
            got.append((message.topic, message.payload, message.qos))
            if len(got) == 6:
                break
        assert got[0] == ("r/1", b"kept", 0), got
        assert got[1:] == [("t/1", b"%d" % n, n % 3) for n in range(5)], got
        assert broker.clients() == []
        assert not broker.disconnect("nobody")


@program
async def who_awaits_publish_overruns_no_reader() -> None:
    async with Broker() as broker:
        count = 20_000
        readings = broker.subscribe("#", queue=100)

        async def read() -> int:
            got = 0
            async for _ in readings:
                got += 1
                if got == count:
                    return got
            return got

        reading = start(read())
        for _ in range(count):
            await broker.publish("t", b"x")
        assert await reading == count
        assert readings.dropped == 0


@program
async def a_reader_that_does_not_read_loses_the_oldest() -> None:
    async with Broker() as broker:
        lost: list[bytes] = []

        @broker.hook("delivery.dropped")
        def dropped(client: Any, reason: str, message: Any) -> None:
            assert reason == "queue_full"
            lost.append(message.payload)

        readings = broker.subscribe("t", qos=1, queue=4)
        for number in range(20):
            await broker.publish("t", b"%d" % number, qos=1)
        # Those that were handed over already, then the newest that fit.
        assert readings.waiting + readings.dropped == 20, (readings.waiting, readings.dropped)
        assert 4 <= readings.waiting <= 8
        assert len(lost) == readings.dropped
        assert broker.service.broker.metrics.dropped_queue_full == readings.dropped
        got = [(await readings.__anext__()).payload for _ in range(readings.waiting)]
        assert got[-1] == b"19"
        assert sorted([*got, *lost], key=int) == [b"%d" % n for n in range(20)]


@program
async def the_end_of_the_broker_ends_the_loops() -> None:
    broker = Broker()
    await broker.start()
    readings = broker.subscribe("t")
    seen = []

    async def read() -> int:
        async for message in readings:
            seen.append(message)
        return len(seen)

    reading = start(read())
    await broker.publish("t", b"x")
    await turn()
    await broker.stop()
    await broker.stop()
    assert await reading == 1
    assert readings.closed
    assert not broker.running
    try:
        await broker.publish("t", b"x")
    except NotRunning as error:
        assert "start the broker first" in str(error)
    else:
        raise AssertionError("published without a broker")
    async with broker:
        assert await broker.publish("t", b"again") == 0


@program
async def clients_come_through_listeners_and_hooks_see_them() -> None:
    broker = Broker({"mqtt": {"max_qos": 1}}, listeners={"one": "127.0.0.1:0", "two": "[::1]:0"})
    connected = []

    @broker.hook("client.connected")
    def note(client: Any, acc: None) -> None:
        connected.append(client.client_id)

    async with broker:
        assert sorted(broker.ports) == ["one", "two"]
        peer = socket.create_connection(("127.0.0.1", broker.ports["one"]), timeout=10)
        peer.setblocking(False)
        peer.sendall(b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x00\x00\x03bob")
        for _ in range(1000):
            if connected:
                break
            await turn()
        assert connected == ["bob"]
        assert [client.client_id for client in broker.clients()] == ["bob"]
        assert broker.disconnect("bob")
        broker.unhook("client.connected", note)
        peer.close()


@program
async def a_hook_that_fails_is_passed_over() -> None:
    async with Broker() as broker:

        @broker.hook("message.publish")
        def broken(message: Any) -> None:
            raise RuntimeError("no")

        readings = broker.subscribe("t", queue=100)
        for _ in range(50):
            assert await broker.publish("t", b"x") == 1
        assert readings.waiting == 50
        assert broker.service.hooks.errors["message.publish"] == 50


@program
async def a_port_in_use_is_named_and_can_be_tried_again() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    broker = Broker(listeners={"default": f"127.0.0.1:{port}"})
    try:
        await broker.start()
    except Exception as error:
        assert f"127.0.0.1:{port}" in str(error), error
    else:
        raise AssertionError("listens twice")
    assert not broker.running
    taken.close()
    async with broker:
        assert broker.ports == {"default": port}


@program
async def what_prevents_the_start_is_raised_and_leaves_nothing() -> None:
    broker = Broker({"plugins": {"load": ["no_such_plugin"]}}, listeners={"default": "127.0.0.1:0"})
    try:
        await broker.start()
    except Exception as error:
        assert "no_such_plugin" in str(error), error
    else:
        raise AssertionError("started without its plugin")
    broker = Broker(listeners={"default": "127.0.0.1:0"})
    broker.hook("no.such.point")(print)
    try:
        await broker.start()
    except ValueError as error:
        assert "no.such.point" in str(error), error
    else:
        raise AssertionError("started with a hook that nobody calls")
    assert not broker.running
    broker.unhook("no.such.point", print)
    async with broker:
        assert broker.ports["default"]


@program
async def signals_timers_and_limits_stay_the_programs_own() -> None:
    def mine(number: int, frame: object) -> None:
        raise AssertionError("nobody sends this")

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    signal.signal(signal.SIGALRM, mine)
    signal.setitimer(signal.ITIMER_REAL, 1000)
    before = _process()
    try:
        async with Broker(listeners={"default": "127.0.0.1:0"}) as broker:
            assert _process() == before
            broker.hook("message.publish")(lambda message, acc=None: None)
            await broker.publish("t", b"x")  # calls the hook, for which a watchdog may look
            assert broker.service.watchdog.watch.armed
            assert _process() == before
            assert broker.service.engine.most < 512
        assert _process() == before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _process() -> list[object]:
    """What of the process is not the broker's to change."""
    handlers = [signal.getsignal(number) for number in sorted(signal.valid_signals())]
    timer = signal.getitimer(signal.ITIMER_REAL)[0] > 900
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    collector = [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()]
    return [handlers, timer, limits, *collector, sys.getswitchinterval()]


@program
async def the_engine_rests_only_where_the_program_says_so() -> None:
    async with Broker() as broker:
        assert broker.service.broker.settings.gather == 0
    async with Broker({"output": {"gather": "50us"}}) as broker:
        assert broker.service.broker.settings.gather == 50e-6


def start(work: Any) -> Any:
    """Run a coroutine beside this one; gives what to await."""
    if sys.argv[1] == "asyncio":
        return asyncio.ensure_future(work)
    from twisted.internet.defer import Deferred

    return Deferred.fromCoroutine(work)


async def run_all() -> None:
    for name, chosen in PROGRAMS.items():
        try:
            await chosen()
        except Exception:
            print(name, "failed:")
            traceback.print_exc(file=sys.stdout)
        else:
            print("ok", name)


if __name__ == "__main__":
    if sys.argv[1] == "asyncio":
        asyncio.run(run_all())
    else:
        from twisted.internet.defer import Deferred
        from twisted.internet.task import react

        react(lambda reactor: Deferred.fromCoroutine(run_all()))
