"""The control plane of one process: the doors of the HTTP interface, who may log in, the audit.

    mqttd-ctl --> socket (AdminService) --.
    programs --> TCP (AdminTcpService) ----+--> Api --> Parts: the broker, its read model, ...
    browsers --> page (PageService) ------'      `--> audit.jsonl: every change, who made it

Promise: what cannot be opened is said before the broker starts; only the page may be missing where
its address is in use, which is an alarm. docs/design/control.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from twisted.application.service import MultiService
from twisted.logger import Logger

from mqttd.admin.api import Api
from mqttd.admin.doors.door import AddressError, DoorError
from mqttd.admin.doors.page import PageService
from mqttd.admin.doors.server import AdminService
from mqttd.admin.doors.site import limit_body
from mqttd.admin.doors.tcp import AdminTcpService
from mqttd.admin.http.api_users import ApiUsers
from mqttd.admin.http.first import FirstUser, link_with
from mqttd.admin.http.logins import Logins
from mqttd.admin.http.parts import Desk
from mqttd.config.schema import Config
from mqttd.monitor.log.targets import FileTarget
from mqttd.monitor.log.writer import Writer
from mqttd.options import StartError, closed_doors, open_secrets, unheard

__all__ = ["Control"]

#: Bytes of the file of the audit, and older ones that are kept.
_AUDIT_BYTES: Final = 10 << 20
_AUDIT_FILES: Final = 5


class Control(MultiService):
    """The HTTP interface `api` to what `parts` has, at the doors that `config` wants.

    `missing(text)` is told why there is no page. A worker, which is `behind` a supervisor, has its
    socket alone. Raises StartError for a door or a file that cannot be opened.
    """

    def __init__(
        self,
        config: Config,
        parts: Desk,
        api: Api,
        reactor: Any,
        missing: Callable[[str], object] = lambda text: None,
        behind: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.config = config
        self.api = api
        self.missing = missing
        self.behind = parts.behind = behind
        self.parts = parts
        self.reactor = reactor
        self.log = Logger(namespace="mqttd")
        self.audit: Writer | None = None
        if not behind:
            self.audit = self._audit_file()
            parts.audit.write = self.audit.put
            for note in (*unheard(config), *open_secrets(config)):
                self.log.warn("{note}", note=note)
        self.api_users = ApiUsers(
            os.path.join(config.node.data_dir, "api-users.json"),
            lambda text: self.log.error("API users: {text}", text=text),
            changed=lambda before, after: self.file_changed("api-users.json", before, after),
        )
        self.api_users.look()  # what is there by now was not changed while we ran
        self.logins = parts.logins = Logins(self.api_users, reactor, parts.in_thread)
        self.first = parts.first = FirstUser(self.api_users, reactor, parts.in_thread)
        most = 2 * config.mqtt.max_packet_size
        self.socket = AdminService(api.resource(), config.admin.socket, reactor, most, behind)
        self.addService(self.socket)  # type: ignore[no-untyped-call]
        self.tcp = self._tcp()
        self.page = self._page()

    def _audit_file(self) -> Writer:
        """Where changes that were made over the HTTP interface are kept; raises StartError."""
        path = os.path.join(self.config.node.data_dir, "audit.jsonl")
        try:
            target = FileTarget(path, _AUDIT_BYTES, _AUDIT_FILES, private=True)
        except OSError as error:
            raise StartError(f"{path}: {error.strerror}") from None
        return Writer(target, 1 << 20, lambda lost: b'{"lost": %d}\n' % lost)

    def _tcp(self) -> AdminTcpService | None:
        """The HTTP interface over TCP, where there are tokens for it."""
        if not self.has_tcp(self.config):
            for note in self.closed(self.config):
                self.log.warn("{note}", note=note)
            return None
        try:
            service = self.new_tcp(self.config)
        except DoorError as error:
            raise StartError(str(error)) from None
        self.addService(service)  # type: ignore[no-untyped-call]
        return service

    def _page(self) -> PageService | None:
        """The dashboard; a broker goes on without it where its address is in use."""
        settings = self.config.admin.page
        if not settings.enabled or self.behind:
            return None
        most = 2 * self.config.mqtt.max_packet_size
        try:
            page = PageService(self.api.resource(), settings, self.reactor, most, self.logins)
        except AddressError as error:
            self.log.error("no dashboard: {error}", error=str(error))
            self.missing(f"there is no dashboard: {error}")
            return None
        except DoorError as error:
            raise StartError(str(error)) from None
        self.log.info("dashboard on port {port}: {url}", port=page.port, url=page.url)
        if token := self.first.offer():
            self.log.warn(
                "no person may log in at the dashboard yet (tokens are for programs); this makes"
                " the first administrator, once, within an hour: {link}",
                link=link_with(page.url, token),
            )
        self.addService(page)  # type: ignore[no-untyped-call]
        return page

    def has_tcp(self, config: Config) -> bool:
        """Whether the interface is to be had over TCP, and here."""
        settings = config.admin.tcp
        return bool(settings.token_file or settings.pull_token_file) and not self.behind

    def closed(self, config: Config) -> list[str]:
        """What is to be told of addresses at which nothing is to be had."""
        return [] if self.behind else closed_doors(config)

    def locks_out(self, before: Config, after: Config) -> list[str]:
        """What an operator should know of a configuration that closes the door they may use."""
        if self.tcp is None or not before.admin.tcp.token_file or after.admin.tcp.token_file:
            return []
        return ["closes the HTTP interface over TCP: who administers through it is locked out"]

    def new_tcp(self, config: Config, before: AdminTcpService | None = None) -> AdminTcpService:
        """An HTTP interface over TCP, in the place of another one; raises DoorError."""
        most = 2 * config.mqtt.max_packet_size
        service = AdminTcpService(
            self.api.resource(), config.admin.tcp, self.reactor, most, before, self.api_users
        )
        self.log.info("HTTP interface on port {port}: {url}", port=service.port, url=service.url)
        return service

    def put_tcp(self, service: AdminTcpService | None) -> None:
        """Serve at this door from now on, or at none; the one before it is closed."""
        if self.tcp is not None:
            self.removeService(self.tcp)  # type: ignore[no-untyped-call]
        self.tcp = service
        if service is not None:
            self.addService(service)  # type: ignore[no-untyped-call]

    def limit_bodies(self, most: int) -> None:
        """Refuse requests to the HTTP interface with bodies of more than so many bytes."""
        for service in (self.socket, self.tcp, self.page):
            if service is not None:
                limit_body(service.site, most)

    def held(self) -> int:
        """Bytes of answers that nobody has read yet."""
        return sum(
            service.site.crowd.held
            for service in (self.socket, self.tcp, self.page)
            if service is not None
        )

    def start_audit(self) -> None:
        """Have a thread write the audit."""
        if self.audit is not None:
            self.audit.start()

    def stop_audit(self) -> None:
        """Write what waits."""
        if self.audit is not None:
            self.parts.audit.finish()
            self.audit.stop()

    def file_changed(self, what: str, before: Any, after: Any) -> None:
        """Somebody has changed users in their file, as `mqttd-ctl` does: the audit has it too."""
        self.parts.audit.put(
            "file", "-", "file", "FILE", what, f"{what}: changed in their file", before or None,
            after or None,
        )  # fmt: skip
