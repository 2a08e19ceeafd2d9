"""The authentication modules that mqttd brings: made as `[auth]` says, and ready to be asked.

Each is imported when it is named, so that nobody needs the library of a module that is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from mqttd.access.auth.anonymous import Anonymous
from mqttd.access.auth.authentication import OnRevoked
from mqttd.access.auth.guard import OnEvent
from mqttd.access.auth.module import BUILT_IN, UnknownModule
from mqttd.access.auth.who import believes_any
from mqttd.config.schema import Config
from mqttd.hints import like

__all__ = ["built_in"]


def built_in(
    name: str,
    config: Config,
    opts: Mapping[str, object],
    reactor: Any,
    on_revoked: OnRevoked,
    on_event: OnEvent,
) -> object:
    """The built-in module `name`, ready; raises `UnknownModule`, or what its ``init`` raises."""
    module: Any
    filled: dict[str, object]
    auth = config.auth
    if name == "anonymous":
        module, filled = Anonymous(), {"allow": auth.anonymous}
    elif name == "username":
        from mqttd.access.auth.username import Username

        module = Username(reactor, on_revoked=on_revoked, on_event=on_event)
        required = "auth.username.file" in config.given
        filled = {
            "file": auth.username.file,
            "required": required,
            "unknown": "pass" if believes_any(auth) else auth.username.unknown,
            **msgspec.structs.asdict(auth.password),
        }
    elif name == "clientid":
        from mqttd.access.auth.clientid import Clientid

        module = Clientid(reactor, on_gone=on_revoked, on_event=on_event)
        filled = {"file": auth.clientid.file, **msgspec.structs.asdict(auth.password)}
    elif name == "certificate":
        from mqttd.access.auth.certificate import CertificateName

        module, filled = CertificateName(), msgspec.structs.asdict(auth.certificate)
    elif name == "jwt":
        from mqttd.access.auth.jwt import Jwt

        module, filled = Jwt(reactor, on_event), msgspec.structs.asdict(auth.jwt)
    elif name == "scram":
        from mqttd.access.auth.scram import Scram

        module = Scram(reactor, on_revoked=on_revoked, on_event=on_event)
        filled = {"file": auth.scram.file}
    else:
        raise UnknownModule(
            f"no built-in auth module {name!r}; expected one of: {', '.join(BUILT_IN)}, or the"
            f" module of a plugin that plugins.load names{like(name, BUILT_IN)}",
            name,
        )
    filled.update(opts)
    module.init(filled)
    watch: Callable[[], None] | None = getattr(module, "watch", None)
    if watch is not None and reactor is not None:
        watch()
    return cast(object, module)
