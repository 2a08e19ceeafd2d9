"""Recent answers of a back end, found again by a keyed hash of all that the client showed.

A client that comes back within seconds, or a thousand that come with the same wrong password, ask
the back end once.  The key is HMAC-SHA-256 under a key that this process made at its start and
never writes anywhere: neither a password nor a plain hash of one is kept.

Promise: at most `size` answers, the oldest goes first; an answer is never given after its time.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Final, Generic, TypeVar

from mqttd.types import ClientInfo

__all__ = ["SIZE", "AnswerCache"]

SIZE: Final = 10_000
_KEY: Final = os.urandom(32)

T = TypeVar("T")


class AnswerCache(Generic[T]):
    """Answers with the second (of any clock) they are good until."""

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._answers: dict[bytes, tuple[float, T]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    @staticmethod
    def key(client: ClientInfo, password: bytes | None) -> bytes:
        """What stands for this client with this password."""
        parts: list[bytes | None] = [
            text.encode("utf-8", "surrogatepass") if text is not None else None
            for text in (
                client.client_id,
                client.username,
                client.peerhost,
                client.listener,
                str(client.protocol_version),
                client.cert_common_name,
                client.cert_subject,
                *client.cert_sans,
            )
        ]
        parts.append(password)
        keyed = hmac.new(_KEY, digestmod=hashlib.sha256)
        for part in parts:
            # Its length before each part: no two lists of parts read the same.
            keyed.update(b"\xff" if part is None else len(part).to_bytes(5, "big") + part)
        return keyed.digest()

    def get(self, key: bytes, now: float) -> T | None:
        """The answer kept under `key`, None if there is none any more."""
        found = self._answers.get(key)
        if found is None:
            return None
        if found[0] <= now:
            del self._answers[key]
            return None
        return found[1]

    def put(self, key: bytes, answer: T, until: float) -> None:
        """Keep `answer` until the second `until`."""
        self._answers.pop(key, None)
        if len(self._answers) >= self._size:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = (until, answer)

    def clear(self) -> None:
        """Forget all: users or rights have changed."""
        self._answers.clear()
