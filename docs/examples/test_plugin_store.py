"""A plugin that keeps something, and its tests: run them with pytest."""

from zope.interface import implementer

from mqttd.interfaces import IPlugin
from mqttd.testing import MemoryBroker
from mqttd.types import OK, STOP, StoreFull


@implementer(IPlugin)
class Jobs:
    """Takes each message to jobs/, and gives the next one to whoever asks at jobs-next."""

    def load(self, handle, config):
        self.handle = handle
        self.store = handle.store
        # What was there at the last load is there now, after kill -9 too.
        self.waiting = self.store.keys("job ")
        self.last = int(self.waiting[-1][4:]) if self.waiting else 0
        handle.hook("message.publish", self.take, topic_filter="jobs/#")
        handle.hook("message.publish", self.give, topic_filter="jobs-next")

    def take(self, message):
        key = f"job {self.last + 1:012}"
        try:
            # The client's PUBACK waits until this is on disk.
            self.store.put(key, self.handle.dump_message(message))
        except StoreFull:
            return STOP(0x97)  # Quota exceeded: the client keeps it
        self.last += 1
        self.waiting.append(key)
        return STOP(None)

    def give(self, message):
        if self.waiting:
            key = self.waiting.pop(0)
            job = self.handle.load_message(self.store.get(key))
            self.handle.publish("jobs-now", job.payload, qos=1)
            # In one transaction with the queues that the line before has filled.
            self.store.delete(key)
        return OK

    def unload(self):
        pass


def test_jobs_wait_across_a_reload():
    node = MemoryBroker()
    jobs = node.load(Jobs)
    alice = node.connect("alice")
    assert alice.publish("jobs/a", b"1", qos=1) < 0x80
    assert alice.publish("jobs/b", b"2", qos=1) < 0x80
    jobs.unload()
    node.load(Jobs)
    heard = node.subscribe("jobs-now")
    for _ in range(3):
        alice.publish("jobs-next")
    assert [message.payload for message in heard] == [b"1", b"2"]


def test_a_full_store_refuses():
    node = MemoryBroker()
    node.broker.drawers.most = 1000  # plugins.max_store_bytes
    node.load(Jobs)
    assert node.connect("alice").publish("jobs/a", bytes(2000), qos=1) == 0x97
