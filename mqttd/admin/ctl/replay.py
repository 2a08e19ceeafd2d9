"""`mqttd-ctl replay ...`: feed recorded messages back to this broker, a client, another broker.

Part of `mqttd.admin.ctl.main`, whose promises hold here too; how it is done is in
`mqttd.pipeline.replay`.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

from mqttd.admin.ctl import client as ctl_client
from mqttd.admin.ctl.client import CtlError, client_of
from mqttd.admin.ctl.events import log_directory
from mqttd.admin.ctl.printing import counted, print_json
from mqttd.codec.properties import Properties
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_filter, validate_topic_name
from mqttd.pipeline.client import Address, Client, ClientError, parse_address
from mqttd.pipeline.feed import MOST, encode
from mqttd.pipeline.log.blocks import Corrupt
from mqttd.pipeline.log.pull import PullError, open_log
from mqttd.pipeline.log.reader import DataLoss, EventLog
from mqttd.pipeline.replay import parse_speed, recorded, replay

__all__ = ["add_command"]

#: Bytes of one request to the admin socket, before base64.
REQUEST: int = 256 << 10


def add_command(add: Callable[..., Any], commands: Any) -> None:
    """Add `replay`, with `add` of `mqttd.admin.ctl.main`."""
    text = "Feed recorded messages back."
    command = add(commands, "replay", _run, text)
    for name, about in (("--from", "offset or ISO 8601 time"), ("--to", "the same, not included")):
        command.add_argument(name, dest=name[2:] + "_", metavar="PLACE", help=about)
    command.add_argument("--node", metavar="NAME", help="of this node only")
    command.add_argument("--filter", metavar="FILTER", help="topic filter")
    command.add_argument(
        "--speed", metavar="SPEED", default="1x", help="1x (default), 10x, 0.5x, or max"
    )
    command.add_argument(
        "--retain", action="store_true", help="retained messages are retained again"
    )
    log = command.add_mutually_exclusive_group()
    log.add_argument("--path", metavar="DIRECTORY", help="the log (default: the broker's)")
    log.add_argument("--url", metavar="URL", help="pull endpoint of a broker, in place of --path")
    command.add_argument("--token-file", metavar="FILE", help="with --url: its bearer token")
    command.add_argument("--ca-file", metavar="FILE", help="certificates to trust")
    to = command.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-topic", metavar="PREFIX", help="this broker, topics below PREFIX")
    to.add_argument("--to-client", metavar="ID", help="one connected client only, same topics")
    to.add_argument("--to-broker", metavar="HOST:PORT", help="another broker, same topics")
    command.add_argument("--user", metavar="NAME", help="with --to-broker")
    command.add_argument("--password-file", metavar="FILE", help="with --to-broker")


class _Feed:
    """This broker's admin socket: requests of some messages each."""

    def __init__(self, client: ctl_client.Client, client_id: str) -> None:
        self._client = client
        self._client_id = client_id
        self._messages: list[Any] = []
        self._bytes = 0

    def publish(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties | None
    ) -> None:
        """Keep one for the next request."""
        self._messages.append(encode(topic, payload, qos, retain, properties))
        self._bytes += len(payload) + len(topic)
        if len(self._messages) >= MOST or self._bytes >= REQUEST:
            self.flush()

    def flush(self) -> None:
        """Send it."""
        messages, self._messages, self._bytes = self._messages, [], 0
        if messages:
            argv = [self._client_id, json.dumps(messages)]
            told = self._client.request("POST", "/plugins/spark/commands/feed", {"argv": argv})
            if told["output"] == "0":  # of all workers
                raise CtlError(f"client {self._client_id!r} is not connected")


def _run(options: argparse.Namespace) -> int:
    try:
        speed = parse_speed(options.speed)
        prefix = ""
        if options.filter is not None:
            validate_topic_filter(options.filter)
        if options.to_topic is not None:
            prefix = options.to_topic.rstrip("/") + "/"
            validate_topic_name(prefix + "x")
        if options.url:
            token = _secret(options.token_file) or ""
            log = open_log(None, options.url, token, options.ca_file)
        else:
            log = open_log(options.path or log_directory(options))
        found = recorded(log, options.from_, options.to_, options.node)
        if options.to_broker is None:
            feed = _Feed(client_of(options), options.to_client or "")
            done = replay(found, feed, options.filter, prefix, speed, retain=options.retain)
        else:
            host, port, tls = parse_address(options.to_broker)
            address = Address(
                host, port, options.user, _secret(options.password_file), tls, options.ca_file
            )
            with Client(address) as client:
                client.connect()
                done = replay(found, client, options.filter, prefix, speed, retain=options.retain)
    except MqttError as error:
        raise CtlError(error.detail) from None
    except (OSError, ValueError, DataLoss, Corrupt, PullError, ClientError) as error:
        raise CtlError(str(error)) from None
    if options.json:
        print_json(done.__dict__)
    else:
        print(f"{counted(done.sent, 'message')} sent")
        if done.without_payload:
            print(f"{done.without_payload} have no payload in the log and were left out")
        if done.lost:
            print(f"{done.lost} events of the range were lost before they were logged")
        if not (done.sent or done.without_payload or done.lost):
            print(f"no message of the range matches; the log has {_extent(log)}")
    return 0


def _extent(log: EventLog) -> str:
    """What there is to choose from."""
    nodes = log.bounds().items()
    return ", ".join(f"{node} from {one.earliest} to {one.latest}" for node, one in nodes)


def _secret(path: str | None) -> str | None:
    if path is None:
        return None
    with open(os.path.expanduser(path), encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    if not lines:
        raise ValueError(f"{path}: expected a line with the secret")
    return lines[0]
