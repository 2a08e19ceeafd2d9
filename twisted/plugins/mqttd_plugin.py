"""Makes ``twistd mqttd`` and its reactor known; what they name is imported only when it is run."""

from twisted.application.reactors import Reactor
from twisted.application.service import ServiceMaker

mqttd = ServiceMaker("mqttd", "mqttd.twistd", "An MQTT broker.", "mqttd")
mqttd_reactor = Reactor(
    "mqttd", "mqttd.transports.reactor", "epoll, with the MQTT broker's sockets in the same set."
)
