"""Changes that come to etcd in the order in which they are asked for, or not at all.

    change --> made, if this node is a member, and `sent/<node>` is as it was
           --> no answer: it may come there later --> `sent/<node>` is written anew before the next,
                                                      and what comes after that changes nothing

A condition on each key alone would not do: one that was removed since is as it was before it.

Promise: one more condition, and one more change after each that had no answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from mqttd.cluster.etcd.client import Etcd, EtcdError, Json, created, equals, get, put
from mqttd.cluster.etcd.keys import Keys

__all__ = ["Ordered"]


class Ordered:
    """Those of the node `name` in one epoch of its membership, whose `lease` is this."""

    def __init__(self, etcd: Etcd, keys: Keys, name: str, epoch: int, lease: int) -> None:
        self.etcd = etcd
        self.epoch = epoch
        self.lease = lease
        self._node = keys.node(name)
        self._key = keys.sent(name)
        self._member = created(self._node, epoch)
        #: The revision in which the key has changed last, 0: there is none; and the one on which
        #: something was asked for in vain.
        self._at = 0
        self._vain = -1

    async def change(self, then: Sequence[Json]) -> bool:
        """Have these made; False: we are no member any more.

        Raises EtcdError where they are not, or may be at any time before the next are.
        """
        while True:
            if self._vain == self._at and not await self._renew():
                return False
            at = self._at
            try:
                answer = await self.etcd.transaction([self._member, equals(self._key, at)], then)
            except EtcdError:
                if self._at == at:
                    self._vain = at
                raise
            if answer.done:
                return True
            # Others of ours had no answer meanwhile, or it was written by what we asked in vain.
            known = await self.etcd.transaction([], [get(self._node), get(self._key)])
            found = {kv.key: kv for kv in known.found}
            node, key = found.get(self._node), found.get(self._key)
            if node is None or node.created != self.epoch:
                return False
            self._at = max(self._at, 0 if key is None else key.changed)

    async def _renew(self) -> bool:
        answer = await self.etcd.transaction([self._member], [put(self._key, b"", self.lease)])
        if answer.done:
            self._at = max(self._at, answer.revision)
        return answer.done
