"""The options of the data source `mqttd`, read and checked on the driver.

Names and meanings are those of Spark's Kafka source where there is one like it. A mistake is a
`ValueError` that names the option, its value and what is allowed, before a query starts.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import split_shared, validate_topic_filter
from mqttd.hints import like
from mqttd.pipeline.log.files import NAME
from mqttd.pipeline.log.pull import parse_url
from mqttd.pipeline.log.schema import COLUMNS, EVENTS, GAP

__all__ = [
    "READ_OPTIONS",
    "Options",
    "Position",
    "local",
    "meant",
    "read_options",
    "schema_of",
]

#: Where to begin or end: "earliest", "latest", {node: offset} (-2 earliest, -1 latest), or µs.
Position = str | dict[str, int] | int

READ_OPTIONS: Final = {
    "path": "directory of the event log (data/events), where driver and executors can read it;"
    " several logs are separated by semicolons",
    "url": "pull endpoint of a broker, https://host:port, in place of path; several addresses of it"
    " are separated by commas, several brokers by semicolons",
    "token": "bearer token of the pull endpoint",
    "caFile": "file of certificates to trust for url with https, in place of the system's",
    "cluster": "name of a cluster of brokers (cluster.name), in place of path: etcd says which"
    " nodes there are, and where they are read",
    "etcd": "with cluster: URLs of the members of etcd, separated by commas",
    "etcdCaFile": "file of certificates to trust for etcd, in place of the system's",
    "etcdCertificate": "certificate by which etcd knows this query",
    "etcdPrivateKey": "private key of etcdCertificate",
    "etcdUser": "name by which etcd knows this query, where it has users",
    "etcdPassword": "password of etcdUser",
    "outageTimeout": "how long a broker at url that is away is waited for, such as 90s or 5m"
    " (default 5m)",
    "archive": "where the broker archives finished segments, as its archive is set: what is not in"
    " the log any more is read there",
    "subscribe": "topic filters, comma-separated: events of matching topics only",
    "subscribePattern": "regular expression that the whole topic must match, in place of subscribe",
    "events": "names or globs, comma-separated (message.publish, client.*)",
    "columns": "columns to read, comma-separated, in that order",
    "startingOffsets": "earliest, latest, JSON {node: offset} or an ISO 8601 time; a query that"
    " has a checkpoint goes on from there (default: latest for streams, earliest for batch)",
    "endingOffsets": "the same, for batch (default latest)",
    "maxEventsPerTrigger": "at most so many events in a micro-batch",
    "minPartitions": "at least so many tasks, where there are as many blocks",
    "maxEventsPerPartition": "about so many events in a task at most (default 1000000); otherwise"
    " there is a task for each core, but none for less than 50000 events",
    "failOnDataLoss": "true: a query fails when events it should read are gone (default);"
    " false: it goes on and a log.gap row says how many",
    "includeHeaders": "true: the column headers with the user properties (default false)",
    "includeUserProperties": "true: the column user_properties, a map (default false)",
    "groupId": "name under which the query registers its progress; retention may wait for it",
}

#: Options under the names that Spark's Kafka source has for them.
KAFKA_NAMES: Final = {
    "maxOffsetsPerTrigger": "maxEventsPerTrigger",
    "maxRecordsPerPartition": "maxEventsPerPartition",
    "kafka.group.id": "groupId",
}

#: The same, for a place in time: milliseconds since 1970, or ISO 8601. They go before the others.
TIMES: Final = {"startingTimestamp": "startingOffsets", "endingTimestamp": "endingOffsets"}

#: Other options of Spark's Kafka source: what there is in their place.
NOT_HERE: Final = {
    "kafka.bootstrap.servers": "path or url says which log is read",
    "assign": 'a partition is a node: choose by where("node = ...")',
    "startingOffsetsByTimestamp": "startingTimestamp is for all nodes",
    "endingOffsetsByTimestamp": "endingTimestamp is for all nodes",
    "minOffsetsPerTrigger": "trigger(processingTime=...) lets events gather",
    "maxTriggerDelay": "trigger(processingTime=...) lets events gather",
    "startingOffsetsByTimestampStrategy": "a time behind the last event is the end of the log",
    "groupIdPrefix": "groupId names a query",
    "kafkaConsumer.pollTimeoutMs": "outageTimeout says how long is waited for a broker",
    "fetchOffset.numRetries": "outageTimeout says how long is waited for a broker",
    "fetchOffset.retryIntervalMs": "outageTimeout says how long is waited for a broker",
}

#: What Spark makes of several paths.
_PATHS: Final = "paths"

#: Columns of Spark's Kafka source that have another name here.
_COLUMNS_MEANT: Final = {
    "key": "client_id",
    "value": "payload",
    "partition": "node",
    "offset": "seq",
}

#: Columns that every row has, those of gaps too.
KEYS: Final = ("seq", "node", "event", "timestamp")

#: Columns that are read when an option asks for them, or `columns` names them.
ASKED_FOR: Final = {"headers": "includeHeaders", "user_properties": "includeUserProperties"}

#: Cores where it is not known how many there are.
CORES: Final = 2

_ANY: Final = {name.lower(): name for name in (*READ_OPTIONS, *KAFKA_NAMES, *TIMES)}


@dataclass(frozen=True)
class Options:
    """The options of one read, checked."""

    path: str | None
    url: str | None
    token: str
    ca_file: str | None
    archive: str | None
    filters: tuple[str, ...]
    pattern: str | None
    codes: frozenset[int] | None
    columns: tuple[str, ...]
    starting: Position | None
    ending: Position | None
    max_events: int
    min_partitions: int
    partition_events: int
    fail_on_data_loss: bool
    group: str | None
    #: Seconds that a broker may be away.
    outage: float = 300.0
    #: How many tasks run at once.
    cores: int = CORES
    #: A cluster, and where etcd is.
    cluster: str | None = None
    etcd: tuple[str, ...] = ()
    etcd_ca_file: str = ""
    etcd_certificate: str = ""
    etcd_private_key: str = ""
    etcd_user: str = ""
    etcd_password: str = ""
    #: The names that begin and end were given by.
    starting_as: str = "startingOffsets"
    ending_as: str = "endingOffsets"

    @property
    def description(self) -> str:
        """Which log is read, and what of it, for people; neither token nor password."""
        url = re.sub(r"//[^/@]*@", "//", self.url or "")
        told = [self.path or url or f"cluster {self.cluster}"]
        for name, text in (
            ("archive", (self.archive or "").partition("?")[0]),
            ("subscribe", ",".join(self.filters)),
            ("subscribePattern", self.pattern or ""),
            ("groupId", self.group or ""),
        ):
            if text:
                told.append(f"{name}={re.sub(r'//[^/@]*@', '//', text)}")
        return f"mqttd[{' '.join(told)}]"

    @property
    def gaps(self) -> bool:
        """Whether rows that stand for lost events are wanted."""
        if self.codes is not None:
            return GAP in self.codes
        return not self.filters and self.pattern is None


def meant(name: str) -> str:
    """The option that `name` is in any case, or is another name of; `name` if there is none."""
    known = _ANY.get(name.lower(), name)
    return KAFKA_NAMES.get(known) or TIMES.get(known, known)


def read_options(given: Mapping[str, str], cores: int = CORES) -> Options:
    """Check the options of a read; `cores` is how many tasks run at once.

    Raises ValueError for the first one that is wrong.
    """
    options: dict[str, str] = {}
    said: dict[str, str] = {}
    for name, value in given.items():
        known = _ANY.get(name.lower())
        if known is None:
            # Spark has made small letters of the names: as they were is known of known ones.
            meant_by = next((one for one in NOT_HERE if one.lower() == name.lower()), name)
            raise ValueError(f"mqttd: unknown option {meant_by!r}{_hint(name.lower())}")
        ours = meant(known)
        before = said.get(ours, "")
        if before and not {before, known} & TIMES.keys():
            raise ValueError(f"mqttd: options {before} and {known} say the same: give one of them")
        if before not in TIMES:
            said[ours] = known
            options[ours] = _time(known, value) if known in TIMES else value
    path, url, cluster = options.get("path"), options.get("url"), options.get("cluster")
    given_of = [name for name in ("path", "url", "cluster") if options.get(name)]
    if not given_of:
        raise ValueError(
            "mqttd: set the option path (directory of the event log, such as data/events) or url"
            " (pull endpoint of a broker, https://host:port), or cluster and etcd"
        )
    if len(given_of) > 1:
        both = " and ".join(given_of)
        raise ValueError(f"mqttd: options {both} were both given: one of them is enough")
    text = options.get("etcd", "").strip()
    etcd = _list("etcd", text, "URLs of etcd's members") if text else []
    if bool(cluster) is not bool(etcd):
        raise ValueError("mqttd: options cluster and etcd go together: the name, and who knows it")
    if not all(re.fullmatch(r"https?://[^/\s]+", one) for one in etcd):
        raise _wrong("etcd", options["etcd"], "http://host:2379 or https://host:2379")
    path = _path(path or "")
    if url and not all(_is_url(one.strip()) for one in re.split("[,;]", url)):
        raise _wrong("url", url, "http://host:port or https://host:port")
    ca_file = options.get("caFile") or None
    if ca_file and not cluster and "https:" not in (url or "").lower():
        raise _wrong("caFile", ca_file, "a url with https://host:port beside it: nothing else is"
                     " asked for a certificate")  # fmt: skip
    if "subscribe" in options and "subscribePattern" in options:
        raise ValueError("mqttd: options subscribe and subscribePattern exclude each other")
    pattern = options.get("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise _wrong("subscribePattern", pattern, f"a regular expression ({error})") from None
    group = options.get("groupId")
    if group is not None and not NAME.match(group):
        raise _wrong(said["groupId"], group, "1 to 100 of A-Z, a-z, 0-9 and _ . @ -, no dot first")
    left_out = {name for name, option in ASKED_FOR.items() if not _flag(options, option, False)}
    return Options(
        path=path or None,
        url=url or None,
        token=_token(options.get("token", "")),
        ca_file=ca_file,
        archive=options.get("archive") or None,
        filters=_filters(options.get("subscribe")),
        pattern=pattern,
        codes=_codes(options.get("events")),
        columns=_columns(options.get("columns"), left_out),
        starting=_position(options, "startingOffsets"),
        ending=_position(options, "endingOffsets"),
        max_events=_number(options, said, "maxEventsPerTrigger", 0),
        min_partitions=_number(options, said, "minPartitions", 1),
        partition_events=_number(options, said, "maxEventsPerPartition", 1_000_000),
        fail_on_data_loss=_flag(options, "failOnDataLoss", True),
        group=group,
        outage=_duration(options, "outageTimeout", 300.0),
        cores=cores,
        cluster=cluster or None,
        etcd=tuple(etcd),
        etcd_ca_file=options.get("etcdCaFile", ""),
        etcd_certificate=options.get("etcdCertificate", ""),
        etcd_private_key=options.get("etcdPrivateKey", ""),
        etcd_user=options.get("etcdUser", ""),
        etcd_password=options.get("etcdPassword", ""),
        starting_as=said.get("startingOffsets", "startingOffsets"),
        ending_as=said.get("endingOffsets", "endingOffsets"),
    )


def local(path: str) -> str:
    """The directory that a path of Spark's names: ``file:///srv/events`` is ``/srv/events``."""
    return re.sub("^file:(//)?(?=/)", "", path.strip())


def _path(text: str) -> str:
    found = [local(one) for one in text.split(";")]
    if text and not all(found):
        raise _wrong("path", text, "a directory, or several with one semicolon between two")
    for one in found:
        if re.match("https?://", one, re.IGNORECASE):
            raise _wrong("path", text, "a directory; a broker is read by the option url")
        if re.match("[a-z][a-z0-9+.-]+:/", one, re.IGNORECASE):
            raise _wrong("path", text, "a directory that the system can open, such as /srv/events;"
                         " an archive is read by the option archive beside it")  # fmt: skip
    return ";".join(found)


def _token(text: str) -> str:
    """The token in `text`, of which a file is often read to its end of line; never told."""
    if not re.fullmatch("[!-~]*", token := text.strip()):
        raise ValueError(
            "mqttd: option token: expected one line of the broker's pull_token_file, without"
            " blanks and accents"
        )
    return token


def _hint(name: str) -> str:
    """``; `` and what to write in place of an option that is not known, in small letters."""
    if name == _PATHS:
        return '; several logs are one path, with semicolons between them: load("/srv/a;/srv/b")'
    for one, text in NOT_HERE.items():
        if one.lower() == name:
            return f"; that is one of Spark's Kafka source, and here {text}"
    if hint := like(name, _ANY, _ANY.__getitem__):
        return hint
    kafka = "options of Kafka's client mean nothing here; " if name.startswith("kafka.") else ""
    return f"; {kafka}known: {', '.join(READ_OPTIONS)}"


def schema_of(options: Options) -> str:
    """The schema of a read, in Spark's words."""
    return ", ".join(
        f"{name} {COLUMNS[name][0]}{' NOT NULL' if name in KEYS else ''}"
        for name in options.columns
    )


def _time(name: str, text: str) -> str:
    """A place in time, as an ISO 8601 text."""
    text = text.strip()
    if re.fullmatch(r"\d{1,14}", text):
        return datetime.fromtimestamp(int(text) / 1000, UTC).isoformat()
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise _wrong(name, text, "milliseconds since 1970, or 2026-01-31T12:00:00Z") from None
    return text


def _wrong(name: str, value: str, expected: str) -> ValueError:
    return ValueError(f"mqttd: option {name} = {value!r}: expected {expected}")


def _list(name: str, text: str, expected: str) -> list[str]:
    """The members of a list, none of which is empty: a name may have been lost there."""
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise _wrong(name, text, f"{expected}, none of them empty: take out the comma too many")
    return found


def _is_url(text: str) -> bool:
    try:
        parse_url(text)
    except ValueError:
        return False
    return True


def _filters(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    found = []
    for topic_filter in _list("subscribe", text, "MQTT topic filters such as sensors/#"):
        try:
            validate_topic_filter(topic_filter)
            found.append(split_shared(topic_filter)[1])
        except MqttError as error:
            raise _wrong("subscribe", text, f"MQTT topic filters; {error.detail}") from None
    return tuple(found)


def _codes(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    found: set[int] = set()
    expected = f"names or globs of {', '.join(EVENTS)}"
    for pattern in _list("events", text, expected):
        matched = [code for code, name in enumerate(EVENTS) if fnmatch.fnmatchcase(name, pattern)]
        if not matched:
            raise _wrong("events", text, expected)
        found.update(matched)
    return frozenset(found)


def _columns(text: str | None, left_out: set[str]) -> tuple[str, ...]:
    if text is None:
        return tuple(name for name in COLUMNS if name not in left_out)
    expected = f"a list of {', '.join(COLUMNS)}"
    found = _list("columns", text, expected)
    for name in found:
        if name not in COLUMNS:
            meant = _COLUMNS_MEANT.get(name)
            hint = f"; did you mean {meant}?" if meant else like(name, COLUMNS)
            raise _wrong("columns", text, f"{expected}{hint}")
    if len(set(found)) != len(found):
        raise _wrong("columns", text, "each column once")
    return tuple(found)


def _position(options: Mapping[str, str], name: str) -> Position | None:
    text = options.get(name, "").strip()
    if name not in options or text in ("earliest", "latest"):
        return text or None
    allowed = (
        'earliest, latest, JSON such as {"mqttd": 1000} (-2 earliest, -1 latest), or a time such'
        " as 2026-01-31T12:00:00Z"
    )
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            raise _wrong(name, text, allowed) from None
        if not all(type(value) is int and value >= -2 for value in found.values()):
            raise _wrong(name, text, allowed)
        return {str(node): int(value) for node, value in found.items()}
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise _wrong(name, text, allowed) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1_000_000)


def _number(options: Mapping[str, str], said: Mapping[str, str], name: str, default: int) -> int:
    """A number; `said`: the name that an option was given by."""
    text = options.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 63):
        raise _wrong(said[name], text, "a whole number of at least 1")
    return int(text)


def _duration(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    found = re.fullmatch(r"(\d{1,9})\s*(ms|s|m|h|d|)", text.strip().lower())
    if found is None:
        raise _wrong(name, text, "a duration such as 90s, 5m or 1h")
    return (
        int(found[1])
        * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}[found[2]]
    )


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise _wrong(name, text, "true or false")
    return text.lower() == "true"
