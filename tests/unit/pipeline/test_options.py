"""Options of the data source: what is meant is read, what is wrong is named."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from mqttd.pipeline.log.pull import parse_url
from mqttd.pipeline.log.schema import CODES, COLUMNS, GAP
from mqttd.pipeline.spark.options import read_options, schema_of
from mqttd.pipeline.spark.sink_options import read_sink_options
from mqttd.pipeline.spark.table import given, kept


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:///srv/a", "/srv/a"),
        ("file:/srv/a; /srv/b", "/srv/a;/srv/b"),
        ("data/file:x", "data/file:x"),
    ],
)
def test_a_path_may_be_a_uri_as_all_paths_of_sparks_may(text: str, path: str) -> None:
    assert read_options({"path": text}).path == path


def test_a_token_is_taken_without_the_end_of_its_line() -> None:
    """Who reads a file of tokens gets it with one."""
    assert (
        read_options({"url": "http://a", "token": " s3cret-of-spark\n"}).token == "s3cret-of-spark"
    )


@pytest.mark.parametrize("token", ["one-of-two\nlines", "a blank", "schlüssel"])
def test_a_token_that_is_none_is_not_told(token: str) -> None:
    with pytest.raises(ValueError, match="option token: expected one line of") as caught:
        read_options({"url": "http://a", "token": token})
    assert token not in str(caught.value)


def test_a_path_is_enough() -> None:
    options = read_options({"path": "data/events"})
    assert options.fail_on_data_loss and options.gaps and options.codes is None
    assert "headers" not in options.columns and options.columns[0] == "seq"
    assert schema_of(options).startswith("seq BIGINT NOT NULL, node STRING NOT NULL, event STRING")


def test_names_are_found_in_any_case_as_spark_hands_them_over() -> None:
    options = read_options({"PATH": "x", "startingoffsets": "earliest", "MAXEVENTSPERTRIGGER": "5"})
    assert (options.starting, options.max_events) == ("earliest", 5)


def test_events_are_globs() -> None:
    codes = read_options({"path": "x", "events": "client.*con*, message.publish"}).codes
    assert codes == {CODES[f"client.{end}"] for end in ("connected", "disconnected")} | {
        CODES["message.publish"]
    }


def test_shared_subscriptions_are_their_filters() -> None:
    options = read_options({"path": "x", "subscribe": "$share/g/a/#, b/+"})
    assert options.filters == ("a/#", "b/+")


def test_rows_of_gaps_come_when_asked_for_or_when_nothing_is() -> None:
    assert read_options({"path": "x"}).gaps
    assert not read_options({"path": "x", "subscribe": "a"}).gaps
    assert not read_options({"path": "x", "events": "message.*"}).gaps
    assert read_options({"path": "x", "events": "log.gap", "subscribe": "a"}).codes == {GAP}
    assert read_options({"path": "x", "events": "log.gap", "subscribe": "a"}).gaps


def test_headers_are_a_column_that_is_asked_for() -> None:
    assert "headers" in read_options({"path": "x", "includeHeaders": "true"}).columns
    assert read_options({"path": "x", "columns": "topic, headers"}).columns == ("topic", "headers")
    assert schema_of(read_options({"path": "x", "columns": "headers"})) == (
        "headers ARRAY<STRUCT<key: STRING, value: STRING>>"
    )


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", "earliest"),
        (' {"mqttd": 1000, "w2": -2} ', {"mqttd": 1000, "w2": -2}),
        ("2026-01-31T12:00:00Z", 1769860800000000),
        ("2026-01-31T12:00:00", 1769860800000000),
        ("2026-01-31T13:00:00+01:00", 1769860800000000),
    ],
)
def test_positions(text: str, position: object) -> None:
    assert read_options({"path": "x", "startingOffsets": text}).starting == position


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "set the option path .* or url"),
        ({"path": "a", "url": "http://b"}, "path and url were both given"),
        ({"url": "b:1"}, "option url = 'b:1': expected http://host:port"),
        ({"path": "a", "startingOffset": "x"}, "'startingOffset'; did you mean startingOffsets"),
        ({"path": "a", "qqq": "x"}, "unknown option 'qqq'; known: path, url, token"),
        (
            {"path": "a", "assign": "{}"},
            "'assign'; that is one of Spark's Kafka source, and here a",
        ),
        ({"paths": '["a", "b"]'}, "'paths'; several logs are one path, with semicolons between"),
        ({"path": "a", "startingoffsetsbytimestamp": "1"}, "option 'startingOffsetsByTimestamp'"),
        ({"path": "a", "Kafka.Bootstrap.Servers": "b:9092"}, "and here path or url says"),
        ({"path": "a", "columns": "topc,qos"}, "user_properties; did you mean topic"),
        ({"path": "a", "columns": "key,value"}, "user_properties; did you mean client_id"),
        ({"path": "a", "kafka.max.poll.records": "5"}, "Kafka's client mean nothing here; known"),
        ({"path": "a", "events": "client.connect"}, "option events .* expected names or globs of"),
        ({"path": "a", "events": ","}, "option events"),
        ({"path": "a", "subscribe": "a/#/b"}, "option subscribe = 'a/#/b': expected MQTT topic"),
        ({"path": "a", "subscribe": " "}, "option subscribe = ' ': .* none of them empty"),
        ({"path": "a", "subscribe": "a,,b"}, "option subscribe = 'a,,b': .* none of them empty"),
        ({"path": "a", "events": "client.*,,log.gap"}, "option events = .* none of them empty"),
        ({"path": "a", "events": "client.*,"}, "option events = .* take out the comma"),
        ({"path": "a", "events": ""}, "option events = '': .* none of them empty"),
        ({"path": "a", "columns": "seq,,topic"}, "option columns = .* none of them empty"),
        ({"path": "a", "columns": ", seq"}, "option columns = .* take out the comma"),
        ({"cluster": "c", "etcd": "http://a,,http://b"}, "option etcd = .* none of them empty"),
        ({"path": "a", "subscribe": "a,"}, "option subscribe = 'a,': .* none of them empty"),
        ({"path": "a", "subscribePattern": "("}, "option subscribePattern .* regular expression"),
        ({"path": "a", "subscribe": "a", "subscribePattern": "b"}, "exclude each other"),
        ({"path": "a", "columns": "topics"}, "option columns .* a list of seq, node, event"),
        ({"path": "a", "columns": "topic,topic"}, "each column once"),
        ({"path": "a", "startingOffsets": "first"}, "option startingOffsets .* earliest, latest"),
        ({"path": "a", "startingOffsets": "{"}, "option startingOffsets"),
        ({"path": "a", "endingOffsets": '{"n": -3}'}, "option endingOffsets"),
        ({"path": "a", "maxEventsPerTrigger": "0"}, "option maxEventsPerTrigger = '0': expected a"),
        ({"path": "a", "minPartitions": "-1"}, "option minPartitions"),
        ({"path": "a", "failOnDataLoss": "yes"}, "failOnDataLoss = 'yes': expected true or false"),
        ({"path": "a", "groupId": "../x"}, "option groupId"),
        ({"path": "a", "maxEventsPerPartition": "1e6"}, "option maxEventsPerPartition = '1e6'"),
        ({"path": "a", "includeHeaders": "1"}, "includeHeaders = '1': expected true or false"),
        ({"url": "http://a,b"}, "option url = 'http://a,b': expected http://host:port"),
        ({"url": "http://a", "outageTimeout": "5 min"}, "outageTimeout = '5 min': expected a dur"),
        ({"path": "a", "pushDown": "true"}, "unknown option 'pushDown'"),
        ({"path": "  "}, "option path = '  ': expected a directory"),
        ({"path": ";"}, "option path = ';': expected a directory, or several"),
        ({"path": "/srv/a; "}, "option path = '/srv/a; ': expected"),
        ({"path": "a;;b"}, "option path = 'a;;b': expected"),
        ({"path": "hdfs://a/b"}, "option path = 'hdfs://a/b': .* by the option archive beside"),
        ({"path": "dbfs:/a"}, "option path = 'dbfs:/a': expected a directory that the system"),
        ({"path": "https://a:1"}, "option path = 'https://a:1': .* by the option url"),
        ({"url": "http://a;"}, "option url = 'http://a;': expected http"),
        ({"url": "http://a", "caFile": "ca"}, "option caFile = 'ca': expected a url with https"),
        ({"path": "a", "caFile": "ca"}, "option caFile = 'ca': expected a url with https"),
        ({"url": "http://a:1?b=c"}, r"option url = 'http://a:1\?b=c': expected http://host:port"),
        ({"url": "http://a:1/#b"}, "option url = 'http://a:1/#b': expected http://host:port"),
        ({"url": "http://a:1/b c"}, "option url = 'http://a:1/b c': expected http://host:port"),
        ({"url": "http://a:1/ü"}, "option url = 'http://a:1/ü': expected http://host:port"),
        ({"url": "http://a:99999"}, "option url = 'http://a:99999': expected http://host:port"),
        ({"url": "http://[::1"}, r"option url = 'http://\[::1': expected http://host:port"),
        ({"path": "a", "maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger = '0': expected"),
        ({"path": "a", "kafka.group.id": ""}, "option kafka.group.id = '': expected 1 to 100"),
        ({"path": "a", "startingTimestamp": "noon"}, "startingTimestamp = 'noon': expected milli"),
        (
            {"path": "a", "maxOffsetsPerTrigger": "5", "maxEventsPerTrigger": "5"},
            "options maxOffsetsPerTrigger and maxEventsPerTrigger say the same",
        ),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(options: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_options(options)


def test_names_of_the_kafka_source_are_known() -> None:
    options = read_options(
        {
            "path": "x",
            "startingTimestamp": "1769860800000",
            "endingTimestamp": "2026-01-31T12:00:01Z",
            "maxOffsetsPerTrigger": "7",
            "kafka.group.id": "etl",
        }
    )
    assert (options.starting, options.ending) == (1769860800000000, 1769860801000000)
    assert (options.max_events, options.group) == (7, "etl")


def test_a_timestamp_goes_before_offsets_as_kafkas_does() -> None:
    for more in ({"startingOffsets": "latest"}, {"startingoffsets": '{"a": 1}'}):
        for first, second in (({}, more), (more, {})):
            given_now = {"path": "x", **first, "startingTimestamp": "1769860800000", **second}
            assert read_options(given_now).starting == 1769860800000000
    table = kept(read_options({"path": "a"}), {**CREATED, "path": "a", "startingTimestamp": "1"})
    assert given({"startingoffsets": "latest"}, table)["startingoffsets"] == "latest"
    assert "startingtimestamp" not in given({"startingoffsets": "latest"}, table)


def test_a_url_may_be_written_in_capitals() -> None:
    options = read_options({"url": "HTTPS://Broker:8081, http://b", "caFile": "ca"})
    assert options.url == "HTTPS://Broker:8081, http://b"
    assert parse_url("HTTPS://Broker:8081")[1:4] == (True, "broker", 8081)


def test_every_column_has_a_type_for_arrow() -> None:
    from mqttd.pipeline.spark.arrow import ARROW_TYPES

    assert {kind for kind, _ in COLUMNS.values()} == set(ARROW_TYPES)


DDL = {
    "long": "BIGINT", "string": "STRING", "timestamp": "TIMESTAMP", "binary": "BINARY",
    "byte": "TINYINT", "boolean": "BOOLEAN", "integer": "INT",
}  # fmt: skip
CREATED = {"owner": "root", "provider": "mqttd", "option.subscribe": "a/#", "subscribe": "a/#"}


def test_a_table_keeps_its_options_in_its_schema_and_a_query_may_say_otherwise() -> None:
    created = {**CREATED, "path": "file:/srv/a%20log", "location": "file:/srv/a%20log"}
    options = read_options(given(created, None))
    assert (options.path, options.filters) == ("/srv/a log", ("a/#",))
    schema = kept(options, created)
    assert schema_of(options) == ", ".join(
        f"{one.name} {DDL[one.dataType.typeName()]}{'' if one.nullable else ' NOT NULL'}"
        for one in schema.fields
    )
    again = StructType.fromJson(json.loads(schema.json()))
    assert read_options(given({}, again)) == options
    other = read_options(given({"SUBSCRIBE": "b"}, again))
    assert (other.path, other.filters) == (options.path, ("b",))
    assert kept(options, {"path": "/srv/a log"}) == schema_of(options)


def test_every_column_can_be_a_tables() -> None:
    options = read_options({"path": "a", "columns": ",".join(COLUMNS)})
    schema = kept(options, {**CREATED, "path": "a"})
    assert [one.name for one in schema.fields] == list(COLUMNS)


def test_a_catalog_is_given_no_token_and_a_table_no_columns() -> None:
    with pytest.raises(ValueError, match="a catalog is no place for a token"):
        given({**CREATED, "url": "https://b:1", "token": "secret"}, None)
    with pytest.raises(ValueError, match="a table is created without columns"):
        given({}, StructType([StructField("seq", LongType())]))


def test_certificates_to_trust_are_for_a_broker_that_has_to_show_one() -> None:
    """The write went on in the clear, as if they were trusted."""
    rows = StructType().add("payload", "string")
    given = {"topic": "a", "caFile": "ca.crt"}
    with pytest.raises(ValueError, match="option caFile = 'ca.crt': expected mqtts://host:port"):
        read_sink_options({"broker": "localhost, mqtt://other:1883", **given}, rows)
    found = read_sink_options({"broker": "mqtts://localhost", **given}, rows)
    assert [(one.tls, one.ca_file) for one in found.addresses] == [(True, "ca.crt")]


@pytest.mark.parametrize(
    ("options", "columns", "told"),
    [
        ({"kafka.bootstrap.servers": "b:9092"}, "payload", "of a write; here that is broker"),
        ({"url": "mqtt://b"}, "payload", "of a write; here that is broker"),
        ({"brokers": "b"}, "payload", "of a write; did you mean broker"),
        ({"broker": "b"}, "value", "the value of Kafka's sink is payload here"),
        ({"broker": "b"}, "key", "a message has no key"),
        ({"broker": "b"}, "text", r"select\(\) those$"),
    ],
)
def test_what_kafkas_sink_calls_otherwise_is_told(
    options: dict[str, str], columns: str, told: str
) -> None:
    rows = StructType().add("topic", "string").add(columns, "string")
    with pytest.raises(ValueError, match=told):
        read_sink_options(options, rows)


def test_a_file_with_a_password_that_is_not_there_is_told_by_its_option() -> None:
    rows = StructType().add("topic", "string").add("payload", "string")
    found = read_sink_options({"broker": "b", "passwordFile": "/no/such"}, rows)
    with pytest.raises(ValueError, match=r"option passwordFile = '/no/such': No such .* executor"):
        found.client()
