"""Keeps the leases of a node in a thread of its own: a loop that is late does not cost them.

    every third of a lease --> each of `leases` kept, by one endpoint after the other
                           --> `proved`, or `ended`, or `error`
    the loop has not been heard of for `HANGS` leases --> nothing is kept: the node is not there

A node with a second's work in each turn is slow, and a member; one that others believe to be gone
loses its routes, and what was on its way to it.

Promise: one request at a time, answered within a quarter of a lease; plain attributes, each written
by one side.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from mqttd.cluster.etcd.why import timed_out
from mqttd.config.schema import Cluster as Settings

__all__ = ["Keeper", "context_of"]

#: Seconds for an answer, at most, and before it is asked for again.
_PATIENCE: Final = 2.0
_AGAIN: Final = 0.2
#: Leases that the loop may be silent for.
HANGS: Final = 4


class Keeper:
    """Keeps `leases`, the first of which proves the node, once they are given."""

    def __init__(
        self, settings: Settings, endpoints: Sequence[str], token: Callable[[], str] = str
    ) -> None:
        self.settings = settings
        #: What etcd knows the node by, as the loop has been told.
        self.token = token
        self.endpoints = tuple(endpoints)
        self.lease = settings.lease
        self.patience = min(_PATIENCE, self.lease / 4)
        self.leases: tuple[int, ...] = ()
        #: When the loop was there last; until when the first lease is proved.
        self.heard = time.monotonic()
        self.proved = 0.0
        #: Leases that have ended, and why etcd has not answered.
        self.ended: frozenset[int] = frozenset()
        self.error = ""
        self._at = 0
        self._stops = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, leases: Sequence[int], proved: float) -> None:
        """These are to be kept from now on."""
        self.proved = proved
        self.heard = time.monotonic()
        self.error = ""
        self.leases = tuple(leases)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Nothing is to be kept any more."""
        self.leases = ()
        self._stops.set()

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        context: ssl.SSLContext | None = None
        while not self._stops.wait(_AGAIN if self.error else self.lease / 3):
            leases = self.leases
            if not leases or time.monotonic() - self.heard > HANGS * self.lease:
                continue
            endpoint = self.endpoints[self._at % len(self.endpoints)]
            try:
                if context is None and endpoint.startswith("https:"):
                    context = context_of(self.settings)
                self._keep(leases, endpoint, context)
            except TimeoutError:
                self.error = f"{endpoint}: {timed_out(self.patience)}"
                self._at += 1
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                self.error = f"{endpoint}: {type(error).__name__}: {error}"[:300]
                self._at += 1

    def _keep(self, leases: tuple[int, ...], endpoint: str, context: ssl.SSLContext | None) -> None:
        place = urlsplit(endpoint)
        host, port = place.hostname or "", place.port or (443 if context else 80)
        made: http.client.HTTPConnection
        if context is None:
            made = http.client.HTTPConnection(host, port, timeout=self.patience)
        else:
            made = http.client.HTTPSConnection(host, port, timeout=self.patience, context=context)
        token = self.token()
        headers = {"Authorization": token} if token else {}
        try:
            for lease in leases:
                asked = time.monotonic()
                body = json.dumps({"ID": str(lease)})
                made.request("POST", "/v3/lease/keepalive", body, headers)
                answer = made.getresponse()
                said: Any = json.loads(answer.read())
                if answer.status != 200:
                    raise ValueError(f"{answer.status}: {said.get('error')}")
                if int(said.get("result", {}).get("TTL", 0)) <= 0:
                    self.ended |= {lease}
                elif lease == leases[0] == (self.leases or (0,))[0]:
                    self.proved = asked + self.lease
            self.error = ""
        finally:
            made.close()


def context_of(settings: Settings) -> ssl.SSLContext:
    """What etcd is shown, and by whom it is to be vouched for; raises OSError."""
    context = ssl.create_default_context(cafile=settings.etcd_ca_file or None)
    if settings.etcd_certificate:
        context.load_cert_chain(settings.etcd_certificate, settings.etcd_private_key or None)
    return context
