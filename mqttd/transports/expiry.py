"""Watches the certificate files of a listener, and tells when something in them is over."""

from __future__ import annotations

from collections.abc import Callable

from mqttd.transports.tls import Tls, TlsError

__all__ = ["CertificateWatch"]


class CertificateWatch:
    """The files of one listener's `tls`; `where` is how the configuration calls it.

    `log(event, fields)` hears of each reading, `alarm(name, text)` of what is wrong, with an empty
    text when it is over.
    """

    def __init__(
        self,
        name: str,
        where: str,
        tls: Tls,
        log: Callable[[str, dict[str, object]], None],
        alarm: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self.where = where
        self.tls = tls
        self.log = log
        self.alarm = alarm
        self._next_look = 0.0
        #: What has been told of files that have expired.
        self._expired = ""

    def look(self, now: float) -> None:
        """Look at the files if it is time to (`now` in seconds)."""
        if now < self._next_look:
            return
        first = self._next_look == 0.0
        self._next_look = now + self.tls.settings.watch_interval
        if not first and self.tls.changed():
            self.reload()
        else:
            self.tell_expiry()

    def begin(self) -> None:
        """The listener starts with the files as they have been read."""
        self.alarm(f"tls:{self.name}", "")
        self.tell_expiry()

    def reload(self) -> str:
        """Read the files again; returns what is wrong with them, and then the old ones stay."""
        try:
            self.tls.reload()
        except TlsError as error:
            text = f"{self.where}: {error}; the old certificate stays in use"
            self.log("certificate refused", {"listener": self.name, "reason": str(error)})
            self.alarm(f"tls:{self.name}", text)
            return str(error)
        self.log("certificate loaded", {"listener": self.name})
        self.alarm(f"tls:{self.name}", "")
        self._expired = ""
        self.tell_expiry()
        return ""

    def tell_expiry(self) -> None:
        """Raise an alarm once something has expired; the next good reload clears it."""
        text = self.tls.expired()
        if text and text != self._expired:
            self.alarm(f"tls:{self.name}", f"{self.where}: {text}")
        self._expired = text
