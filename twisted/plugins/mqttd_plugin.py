"""Makes ``twistd mqttd`` known; mqttd.service is imported only when it is run."""

from twisted.application.service import ServiceMaker

mqttd = ServiceMaker("mqttd", "mqttd.service", "An MQTT broker.", "mqttd")
