"""Who may connect to a listener, and how many at a time: address rules and a token bucket.

    kernel's queue --accept, while there are tokens--> address rules --> connection
                        '-- none left: accept pauses, the others wait in the kernel

Rules are read in order, the first that matches decides: ``"deny 10.0.0.7"``, ``"allow all"``. The
last one has to be for ``all``, so that nobody has to guess what becomes of the rest.

Promise: a listener with neither rules nor a rate has no `Admission` and pays nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from mqttd.config.schema import Network
from mqttd.session.channel.limits import Bucket

__all__ = ["Admission"]


class Admission:
    """The rules (allowed, network; None for all) and the accept rate of one listener.

    `rate` is in connections a second, twice as many may come after a pause; 0 is no limit.
    """

    def __init__(self, rules: Sequence[tuple[bool, Network | None]], rate: int, now: int) -> None:
        self.rules = rules
        #: Everybody may connect: nobody needs to be asked about.
        self.open = len(rules) == 1 and rules[0][0]
        self.bucket = Bucket(rate, 2.0, now) if rate else None

    def room(self, now: int, most: int) -> int:
        """How many of `most` connections may be accepted at `now` (milliseconds)."""
        bucket = self.bucket
        return most if bucket is None else min(most, max(0, int(bucket.fill(now))))

    def take(self, count: int) -> None:
        """So many were accepted; more than there was room for is a debt."""
        if self.bucket is not None:
            self.bucket.level -= count

    def wait(self, now: int) -> int:
        """Milliseconds until one more may be accepted."""
        bucket = self.bucket
        if bucket is None or bucket.fill(now) >= 1.0:
            return 0
        return int((1.0 - bucket.level) * 1000 / bucket.rate) + 1

    def allows(self, host: str) -> bool:
        """Whether this address may connect; what is no address may."""
        if len(self.rules) == 1:
            return self.rules[0][0]
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return True
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        for allowed, network in self.rules:
            if network is None or address in network:
                return allowed
        return False
