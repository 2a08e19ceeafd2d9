"""What etcd says to a program that is no node yet: whether it answers, whether a name is free.

Blocking, without a reactor: for `mqttd-ctl cluster join`.

Promise: `TIMEOUT` seconds for each endpoint.
"""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from mqttd.cluster.etcd.client import TIMEOUT, EtcdError, end_of, kv_of, text_of
from mqttd.cluster.etcd.keeper import context_of
from mqttd.cluster.etcd.keys import Keys, Member, member_of
from mqttd.cluster.etcd.unreadable import shown
from mqttd.cluster.etcd.why import timed_out, why_of_one
from mqttd.cluster.links.tls import etcd_access
from mqttd.config.schema import Config

__all__ = ["members_at"]


def members_at(config: Config) -> dict[str, Member]:
    """Who is in the cluster of `config` now, by name. Raises EtcdError and TlsError.

    ValueError: who has `node.name` cannot be read; others of whom that is so are left out.
    """
    settings = config.cluster
    _, login = etcd_access(settings)
    start = Keys(settings.name).node("")
    errors = []
    for endpoint in settings.endpoints:
        try:
            token = ""
            if login is not None:
                asked = {"name": login[0], "password": login[1]}
                token = str(_ask(config, endpoint, "/v3/auth/authenticate", asked)["token"])
            body = {"key": text_of(start), "range_end": text_of(end_of(start))}
            found = _ask(config, endpoint, "/v3/kv/range", body, token).get("kvs", ())
        except TimeoutError:
            errors.append(f"{endpoint}: {timed_out(TIMEOUT)}")
            continue
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            errors.append(f"{endpoint}: {why_of_one(error, endpoint)}")
            continue
        members = {}
        for said in found:
            kv = kv_of(said)
            name = kv.key[len(start) :].decode(errors="replace")
            try:
                members[name] = member_of(name, kv.value, kv.created)
            except ValueError as error:
                if name == config.node.name:
                    text = f"{shown(kv.key)} in etcd cannot be read: {error}"
                    raise ValueError(text) from None
        return members
    raise EtcdError("; ".join(errors)[:500])


def _ask(config: Config, endpoint: str, path: str, body: dict[str, str], token: str = "") -> Any:
    place = urlsplit(endpoint)
    host, port = place.hostname or "", place.port
    made: http.client.HTTPConnection
    if place.scheme == "https":
        context = context_of(config.cluster)
        made = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=context)
    else:
        made = http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    try:
        made.request("POST", path, json.dumps(body), {"Authorization": token} if token else {})
        answer = made.getresponse()
        data = answer.read()
        try:
            said = json.loads(data)
        except ValueError:
            said = None
        if not isinstance(said, dict) or not said.keys() & {"header", "result", "error"}:
            raise ValueError(f"{answer.status}: this is no answer of etcd to a client")
        if answer.status != 200:
            raise ValueError(f"{answer.status}: {said.get('error')}")
        return said
    finally:
        made.close()
