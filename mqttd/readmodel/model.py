"""All that operators see of a broker, in one object: what the HTTP interface and the page read.

    broker --> Model: clients, subscriptions, retained, routes, slow, memory, figures

The API knows no session and no connection, only these values; when several workers or nodes answer,
they answer here.
"""

from __future__ import annotations

from collections.abc import Callable

from mqttd.broker.broker import Broker
from mqttd.readmodel.clients import Clients
from mqttd.readmodel.figures import Figures
from mqttd.readmodel.holders import Holders
from mqttd.readmodel.retained import RetainedMessages
from mqttd.readmodel.routes import Routes
from mqttd.readmodel.slices import Run, in_slices
from mqttd.readmodel.subscriptions import Subscriptions

__all__ = ["Model"]


class Model:
    """What there is to see of one broker; `more` gives the figures of the parts around it."""

    def __init__(
        self, broker: Broker, more: Callable[[], dict[str, float]] = dict, run: Run = in_slices
    ) -> None:
        self.run = run
        self.clients = Clients(broker, run)
        self.subscriptions = Subscriptions(broker, self.clients)
        self.retained = RetainedMessages(broker, run)
        self.routes = Routes(broker)
        self.holders = Holders(broker, self.clients)
        self.figures = Figures(broker, more)
