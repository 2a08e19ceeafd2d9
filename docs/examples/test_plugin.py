"""A plugin, and its tests: run them with pytest."""

from zope.interface import implementer

from mqttd.interfaces import IPlugin
from mqttd.testing import FaultInjector, HookRecorder, MemoryBroker, PluginConformance
from mqttd.types import OK


@implementer(IPlugin)
class Capitals:
    """Makes every message loud, and says how many there were each minute."""

    def load(self, handle, config):
        self.handle = handle
        self.count = 0
        handle.hook("message.publish", self.loud)
        handle.call_every(60.0, self.tell)

    def loud(self, message):
        self.count += 1
        return OK(message.replace(payload=message.payload.upper()))

    def tell(self):
        self.handle.publish("loud/minute", str(self.count).encode())
        self.count = 0

    def unload(self):
        pass


class TestConformance(PluginConformance):
    def make(self):
        return Capitals()


def test_messages_are_loud():
    node = MemoryBroker()
    node.load(Capitals)
    alice = node.connect("alice")
    alice.subscribe("chat/#", qos=1)
    node.connect("bob", version=4).publish("chat/room", b"hello", qos=1)
    assert [message.payload for message in alice.messages()] == [b"HELLO"]


def test_the_count_is_told_each_minute():
    node = MemoryBroker()
    node.load(Capitals)
    heard = node.subscribe("loud/minute")
    node.publish("a", b"x")
    node.publish("b", b"x")
    node.advance(61)
    assert [message.payload for message in heard] == [b"2"]


def test_a_fault_stops_no_message():
    node = MemoryBroker()
    plugin = Capitals()
    plugin.loud = FaultInjector().raises(RuntimeError("broken")).wrap(plugin.loud)
    node.load(plugin)
    seen = HookRecorder(node.hooks, "message.dropped")
    alice = node.connect("alice")
    alice.subscribe("a")
    alice.publish("a", b"still here")
    assert alice.messages()[0].payload == b"still here"
    assert node.faults and not seen.calls
