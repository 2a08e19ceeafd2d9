"""A broker inside a Twisted program, without a listener: publish and subscribe in one process."""

from twisted.internet import task
from twisted.internet.defer import Deferred

from mqttd.embed import Broker


async def main(reactor):
    async with Broker() as broker:
        readings = broker.subscribe("sensors/+/temperature")
        task.LoopingCall(lambda: Deferred.fromCoroutine(measure(broker))).start(0.1)
        count = 0
        async for message in readings:
            print(message.topic, message.payload.decode())
            count += 1
            if count == 3:
                break


async def measure(broker):
    if broker.running:
        await broker.publish("sensors/kitchen/temperature", "21.5")


task.react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
