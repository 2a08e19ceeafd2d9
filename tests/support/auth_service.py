"""An HTTP service that says who may connect, for tests: served by klein, told by nobody else.

python -m tests.support.auth_service    prints its port; GET /asked shows what it was asked
"""

from __future__ import annotations

import json
import sys
from typing import Any

from klein import Klein
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.web.server import Site

app = Klein()
asked: list[dict[str, Any]] = []


@app.route("/mqtt", methods=["POST"])
def mqtt(request: Any) -> Any:
    said = json.loads(request.content.read())
    asked.append(said)
    request.setHeader("Content-Type", "application/json")
    username, password = said["username"], said["password"]
    if username == "hang":
        return Deferred()
    if username == "garbage":
        return b"<html>it works!</html>"
    if username == "large":
        return b"[" + b" " * 1_000_000 + b"]"
    if username == "moved":
        request.redirect(b"/open")
        return b""
    if username == "stranger":
        return json.dumps({"result": "ignore"}).encode()
    if (username, password) in (("alice", "alice's"), ("root", "root's")):
        rules = [
            {"permission": "allow", "action": "publish", "topic": "up/${username}/#"},
            {"permission": "allow", "action": "subscribe", "topics": ["down/%c", "eq own/#"]},
        ]
        answer = {"result": "allow", "acl": rules, "is_superuser": username == "root"}
        return json.dumps(answer).encode()
    request.setResponseCode(403)
    return b""


@app.route("/open")
def open_(request: Any) -> bytes:
    return b'{"result": "allow", "is_superuser": true}'


@app.route("/asked")
def told(request: Any) -> bytes:
    return json.dumps(asked).encode()


if __name__ == "__main__":
    where = int(sys.argv[1]) if sys.argv[1:] else 0
    port = reactor.listenTCP(where, Site(app.resource()), interface="127.0.0.1")  # type: ignore[attr-defined]
    print(port.getHost().port, flush=True)
    reactor.run()  # type: ignore[attr-defined]
    sys.exit(0)
