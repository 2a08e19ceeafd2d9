"""A broker inside an asyncio program: a hook, a subscription, a client from outside."""

import asyncio

from mqttd.embed import Broker
from mqttd.types import OK

broker = Broker(listeners={"default": "127.0.0.1:0"})  # port 0: take a free one


@broker.hook("message.publish")
def stamp(message):
    """Called for every message, before it is routed."""
    return OK(message.replace(payload=message.payload + b"!"))


async def main():
    async with broker:
        print("listening on port", broker.ports["default"])
        async with broker.subscribe("greetings/#", qos=1) as greetings:
            receivers = await broker.publish("greetings/world", "hello", qos=1)
            print("receivers:", receivers)
            async for message in greetings:
                print(message.topic, message.payload.decode())
                break


asyncio.run(main())
