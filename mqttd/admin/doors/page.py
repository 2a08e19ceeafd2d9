"""The page's address: the page itself, and the HTTP interface for browsers and programs.

    GET /, /page/...     the page: files of `mqttd/admin/web`, for anybody
    /api/v1/...          with ``Authorization: Bearer TOKEN`` of an API user, or both secrets of a
                         log-in, cookie and X-CSRF-Token, from this page
    /health/...          for anybody

What stands between a log-in and the pages of others: the cookie is HttpOnly and SameSite=Strict,
and opens nothing without the token that only this page has (`mqttd.admin.http.logins`); a browser
says whence a request comes (Sec-Fetch-Site, Origin), and only this page's count; without TLS the
Host must be loopback's, so that no name of others leads here; the page may load nothing from
elsewhere, be in nobody's frame, and run no script but its own files.

Promise: closed in the open: behind any address but loopback only with TLS (`mqttd.config.load`).
"""

from __future__ import annotations

import mimetypes
import os
from typing import Any, Final
from urllib.parse import urlsplit

from twisted.web.resource import IResource
from zope.interface import implementer

from mqttd.admin.doors.door import DoorService
from mqttd.admin.doors.health import OPEN_PATHS
from mqttd.admin.http.logins import Logins, caller_of_login
from mqttd.admin.http.requests import Caller, refusal, set_caller
from mqttd.admin.http.slow import Slow
from mqttd.config.schema import AdminPage

__all__ = ["PageDoor", "PageService"]

_FOLDER: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "web")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_API: Final = (b"/api/", b"/metrics", b"/health/")
_HEADERS: Final = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self';"
    b" img-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none';"
    b" frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}
#: Paths that anybody may ask for: they say who one is, or let one in.
_OPEN: Final = (*OPEN_PATHS, b"/api/v1/session", b"/api/v1/session/first")

#: Of a request: Authorization, the cookie, X-CSRF-Token.
_Shown = tuple[bytes | None, bytes, bytes]


@implementer(IResource)
class PageDoor:
    """The page and the API, for who may see them."""

    isLeaf = True

    def __init__(self, resource: IResource, logins: Logins, secure: bool, slow: Slow) -> None:
        self.resource = resource
        self.logins = logins
        self.secure = secure
        self.slow = slow
        self.name = b"mqttd"
        self.files = _files()

    def getChildWithDefault(self, name: bytes, request: Any) -> Any:
        """A leaf has none."""
        return self

    def putChild(self, path: bytes, child: Any) -> None:
        """A leaf takes none."""
        raise TypeError("a leaf")

    def render(self, request: Any) -> Any:
        """Find out who asks, then answer."""
        for name, value in _HEADERS.items():
            request.setHeader(name, value)
        if not self.secure and _host_of(request) not in _LOOPBACK:
            return refusal(request, 421, "misdirected", "no such host here; use 127.0.0.1")
        path: bytes = request.path
        if not path.startswith(_API):
            return self._file(request, path)
        request.mqttd_page = self
        shown = self._shown(request)
        caller, refused = self._caller(request, shown)
        if refused is not None:
            return refused
        if caller is not None:
            set_caller(request, caller, self._who, shown)
        elif path not in _OPEN:
            text = "log in, or show a token; a log-in's cookie takes its X-CSRF-Token beside it"
            return refusal(request, 401, "unauthorized", text)
        elif request.method not in (b"GET", b"HEAD") and not self._is_from_here(request):
            return refusal(request, 403, "cross_site", "this comes from another page")
        return self.resource.render(request)

    # -- cookies

    def give(self, request: Any, cookie: str) -> None:
        """Set the cookie of a log-in."""
        request.addCookie(
            self.name, cookie, path="/", httpOnly=True, secure=self.secure, sameSite="strict"
        )

    def take(self, request: Any) -> None:
        """Take the cookie back."""
        request.addCookie(
            self.name, "", path="/", max_age="0", httpOnly=True, secure=self.secure,
            sameSite="strict",
        )  # fmt: skip

    def cookie_of(self, request: Any) -> bytes:
        """The cookie that a request shows, b"" for none."""
        found: bytes = request.getCookie(self.name) or b""
        return found

    # -- who

    def known(self, request: Any) -> bool:
        """Whether a request shows a token or a log-in that is known."""
        return self._who(self._shown(request)) is not None

    def _shown(self, request: Any) -> _Shown:
        """What a request shows of who asks."""
        given = request.getHeader(b"authorization")
        csrf = request.getHeader(b"x-csrf-token") or b""
        return given, self.cookie_of(request), csrf

    def _who(self, shown: _Shown) -> Caller | None:
        """Whose token or log-in this is; None where it is not known, or not any more."""
        given, cookie, csrf = shown
        if given is not None:
            scheme, _, token = given.partition(b" ")
            if scheme.lower() != b"bearer":
                return None
            return self.logins.users.by_token(token.strip().decode("utf-8", "replace"))
        login = self.logins.find(cookie, csrf)
        return caller_of_login(login) if login is not None else None

    def _caller(self, request: Any, shown: _Shown) -> tuple[Caller | None, Any]:
        """Who asks, or an answer to who is refused."""
        given, cookie, _ = shown
        caller = self._who(shown)
        if given is not None:
            if caller is not None:
                return caller, None
            body = refusal(request, 401, "unauthorized", "this token is not known")
            request.setHeader(b"www-authenticate", b'Bearer realm="mqttd"')
            return None, self.slow.refuse(request, body)
        if cookie and not self._is_from_here(request):
            return None, refusal(request, 403, "cross_site", "this comes from another page")
        return caller, None

    def _is_from_here(self, request: Any) -> bool:
        """Whether a browser says that the page itself has asked; a program says nothing."""
        site = request.getHeader(b"sec-fetch-site")
        if site is not None and site not in (b"same-origin", b"none"):
            return False
        origin = request.getHeader(b"origin")
        if origin is None:
            return True
        scheme = b"https://" if self.secure else b"http://"
        return bool(origin == scheme + (request.getHeader(b"host") or b""))

    # -- the page

    def _file(self, request: Any, path: bytes) -> bytes:
        if request.method not in (b"GET", b"HEAD"):
            request.setHeader(b"allow", b"GET, HEAD")
            return refusal(request, 405, "method_not_allowed", "a page can be read")
        found = self.files.get(path)
        if found is None:
            return refusal(request, 404, "not_found", "no such page")
        kind, data = found
        request.setHeader(b"content-type", kind)
        request.setHeader(b"cache-control", b"no-cache")
        return data


def _files() -> dict[bytes, tuple[bytes, bytes]]:
    """The files of the page by their path: there are no others, whatever a path looks like."""
    found: dict[bytes, tuple[bytes, bytes]] = {}
    for folder, _, names in os.walk(_FOLDER):
        for name in names:
            place = os.path.join(folder, name)
            path = "/" + os.path.relpath(place, _FOLDER).replace(os.sep, "/")
            kind = mimetypes.guess_type(name)[0] or "text/plain"
            if kind.startswith("text/") or kind.endswith("javascript"):
                kind += "; charset=utf-8"
            with open(place, "rb") as file:
                found[path.encode()] = kind.encode(), file.read()
    if b"/index.html" in found:
        found[b"/"] = found[b"/index.html"]
    return found


def _host_of(request: Any) -> str:
    """The name in the Host of a request, without its port."""
    host = (request.getHeader(b"host") or b"").decode("latin-1")
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class PageService(DoorService):
    """The door of ``[admin.page]``; see `DoorService`."""

    def __init__(
        self,
        resource: IResource,
        settings: AdminPage,
        reactor: Any,
        max_body: int,
        logins: Logins,
    ) -> None:
        page = PageDoor(resource, logins, bool(settings.certificate), Slow(reactor))
        super().__init__("admin.page", settings, page, reactor, max_body, known=page.known)
        # Browsers send a cookie to every port of a host.
        page.name = b"mqttd-%d" % self.port
