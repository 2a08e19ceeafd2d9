"""Subscribe, publish one message, print it when it comes back, leave."""

import sys

import paho.mqtt.client as mqtt


def on_message(client, userdata, message):
    print(message.topic, message.payload.decode())
    client.disconnect()


client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
client.on_connect = lambda client, *_: client.subscribe("greetings/#", qos=1)
client.on_subscribe = lambda client, *_: client.publish("greetings/python", "hello", qos=1)
client.on_message = on_message
client.connect("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 1883)
client.loop_forever()
