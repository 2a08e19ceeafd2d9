"""Publishers hear of success when a file has their messages, and the tests of that: use pytest."""

from pathlib import Path

from zope.interface import implementer

from mqttd.codec.packets import Puback, Publish
from mqttd.interfaces import IPlugin
from mqttd.testing import MemoryBroker
from mqttd.types import OK


@implementer(IPlugin)
class Journal:
    """Writes what is published below orders/ to a file, all that has come with one write."""

    def load(self, handle, config):
        self.handle = handle
        self.path = Path(handle.data_dir) / "journal"
        self.lines, self.waiting, self.writing = [], [], False
        handle.hook("message.publish", self.note, topic_filter="orders/#")
        # What it could not be asked about is not acknowledged: the client sends it again.
        handle.hold_acknowledgements(self.hold, "orders/#", required=True)

    def note(self, message):
        self.lines.append(message.topic.encode() + b" " + message.payload + b"\n")
        return OK

    def hold(self, release, client_id):
        # Once for what this client has sent in a turn; `note` has seen all of it.
        self.waiting.append(release)
        if not self.writing:
            self.write()

    def write(self):
        self.writing = True
        lines, self.lines = self.lines, []
        waiting, self.waiting = self.waiting, []
        done = self.handle.in_thread(self.append, b"".join(lines))
        done.addCallback(self.written, waiting)
        done.addErrback(self.failed, lines, waiting)

    def append(self, data):
        with self.path.open("ab") as file:
            file.write(data)

    def written(self, result, waiting):
        self.writing = False
        self.handle.clear_alarm("journal")
        for release in waiting:
            release()
        if self.waiting:
            self.write()

    def failed(self, failure, lines, waiting):
        # Nobody is told of success; the next try takes these along.
        self.lines[:0] = lines
        self.waiting[:0] = waiting
        self.handle.alarm("journal", failure.getErrorMessage())
        self.handle.call_later(1.0, self.write)

    def unload(self):
        pass


def pubacks(client):
    return [packet.packet_id for packet in client.received if isinstance(packet, Puback)]


def test_an_order_is_written_before_it_is_acknowledged():
    node = MemoryBroker()
    journal = node.load(Journal).plugin
    # 0x10: it is accepted, and nobody has subscribed to it.
    assert node.connect("till").publish("orders/1", b"tea", qos=1) == 0x10
    assert journal.path.read_bytes() == b"orders/1 tea\n"


def test_what_cannot_be_written_is_not_acknowledged():
    node = MemoryBroker()
    loaded = node.load(Journal)
    loaded.plugin.path.mkdir()  # there is no writing to it
    till = node.connect("till")
    # `publish` would wait for the PUBACK: packets as they are do not.
    till.send(Publish("orders/1", b"tea", 1, packet_id=1), Publish("sold", b"tea", 1, packet_id=2))
    assert pubacks(till) == [] and "journal" in loaded.alarms
    loaded.plugin.path.rmdir()
    node.advance(1.0)
    # In the order of its messages, also of those that nobody holds.
    assert pubacks(till) == [1, 2] and not loaded.alarms


def test_other_clients_do_not_wait():
    node = MemoryBroker()
    node.load(Journal).plugin.path.mkdir()
    node.connect("till").send(Publish("orders/1", b"tea", 1, packet_id=1))
    assert node.connect("door").publish("door/open", b"1", qos=1) == 0x10
