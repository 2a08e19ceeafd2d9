"""mqttd: an MQTT 3.1, 3.1.1 and 5.0 broker on Twisted."""

from mqttd import _pure
from mqttd._pure import compiled

__all__ = ["__version__", "compiled"]

__version__ = "0.2.0"

_pure.choose()
