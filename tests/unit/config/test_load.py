"""Loading: what a configuration file and the environment give, and how mistakes are told."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.config import guess
from mqttd.config.load import ConfigError, load
from mqttd.config.options import OPTIONS, Option
from mqttd.config.schema import NEVER, Cluster, Config, TcpListener

Load = Callable[..., Config]


@pytest.fixture
def read(tmp_path: Path) -> Load:
    """Load a text as the file ``mqttd.conf``, with the environment given."""

    def read_text(text: str, environ: Mapping[str, str] | None = None) -> Config:
        path = tmp_path / "mqttd.conf"
        path.write_text(text, encoding="utf-8")
        return load(str(path), environ or {})

    return read_text


def mistakes(read: Load, text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """The mistakes found, without the directory of the file."""
    with pytest.raises(ConfigError) as caught:
        read(text, environ)
    assert str(caught.value) == "\n".join(caught.value.mistakes)
    return [line.rpartition("/mqttd.conf")[2] or line for line in caught.value.mistakes]


def test_an_empty_file_gives_the_defaults(read: Load, tmp_path: Path) -> None:
    config = read("")
    assert config.mqtt == Config().mqtt
    assert config.session == Config().session
    assert config.listener == {"tcp": {"default": TcpListener()}}
    assert config.given == {}
    assert config.path == str(tmp_path / "mqttd.conf")


def test_no_file_gives_the_defaults_as_if_under_etc() -> None:
    config = load(None, {})
    assert config.path == ""
    assert config.node.data_dir == os.path.abspath("data")
    assert config.acl.file == os.path.abspath("etc/acl.conf")


def test_values_arrive_in_bytes_and_seconds(read: Load) -> None:
    config = read(
        """
        [mqtt]
        max_packet_size = "64KiB"
        server_keepalive = "2m"
        connect_timeout = "250ms"
        keepalive_multiplier = 2
        [session]
        retry_interval = 0
        expiry_interval = "never"
        [mqueue]
        max_bytes = 4096
        priorities = { "alarm/#" = 9 }
        [auth]
        chain = ["anonymous"]
        """
    )
    assert config.mqtt.max_packet_size == 65536
    assert config.mqtt.server_keepalive == 120
    assert type(config.mqtt.server_keepalive) is int
    assert config.mqtt.connect_timeout == 0.25
    assert config.mqtt.keepalive_multiplier == 2.0
    assert config.session.retry_interval == 0.0
    assert config.session.expiry_interval == NEVER
    assert config.mqueue.max_bytes == 4096
    assert config.mqueue.priorities == {"alarm/#": 9}
    assert config.auth.chain == ("anonymous",)


def test_given_names_the_keys_that_were_set(read: Load) -> None:
    config = read('[auth.username]\nfile = "users.conf"\n', {"MQTTD__LOG__LEVEL": "debug"})
    assert set(config.given) == {"auth.username.file", "log.level"}


def test_relative_paths_count_from_the_file(read: Load, tmp_path: Path) -> None:
    config = read('[node]\ndata_dir = "var"\n[acl]\nfile = "/etc/acl.conf"\n')
    assert config.node.data_dir == str(tmp_path / "var")
    assert config.admin.socket == str(tmp_path / "var" / "mqttd.sock")
    assert config.acl.file == "/etc/acl.conf"
    assert config.auth.username.file == str(tmp_path / "users.conf")
    assert config.plugins.dir == str(tmp_path / "plugins")


def test_a_path_in_the_environment_counts_from_the_file_too(read: Load, tmp_path: Path) -> None:
    config = read("", {"MQTTD__NODE__DATA_DIR": "elsewhere"})
    assert config.node.data_dir == str(tmp_path / "elsewhere")


def test_listeners_have_names(read: Load) -> None:
    config = read(
        """
        [listener.tcp.inside]
        bind = "127.0.0.1:1883"
        [listener.tcp.outside]
        bind = "[::]:1884"
        max_connections = 10
        """
    )
    assert list(config.listener["tcp"]) == ["inside", "outside"]
    assert config.listener["tcp"]["inside"].address == ("127.0.0.1", 1883)
    assert config.listener["tcp"]["outside"].address == ("::", 1884)
    assert config.listener["tcp"]["outside"].max_connections == 10


@pytest.mark.parametrize("text", ["[listener]", "[listener.tcp]", "[listener.tcp.default]"])
def test_without_a_listener_there_is_one(read: Load, text: str) -> None:
    assert read(text).listener == {"tcp": {"default": TcpListener()}}


def test_the_environment_wins_over_the_file(read: Load) -> None:
    config = read(
        '[mqtt]\nmax_qos = 1\nmax_packet_size = "1MiB"\n',
        {
            "MQTTD__MQTT__MAX_PACKET_SIZE": "64KiB",
            "MQTTD__MQTT__RETAIN_AVAILABLE": "False",
            "MQTTD__MQTT__KEEPALIVE_MULTIPLIER": "2",
            "MQTTD__SESSION__RECEIVE_MAXIMUM": "10",
            "MQTTD__SESSION__EXPIRY_INTERVAL": "never",
            "MQTTD__AUTH__CHAIN": "username, anonymous",
            "MQTTD__AUTH__USERNAME__FILE": "/etc/users",
            "MQTTD__PLUGINS__LOAD": '["a", "b"]',
            "MQTTD__MQUEUE__PRIORITIES": '{"a/#" = 1}',
            "MQTTD__LISTENER__TCP__DEFAULT__BIND": "127.0.0.1:0",
            "MQTTD_PURE": "1",
            "PATH": "/bin",
        },
    )
    assert config.mqtt.max_qos == 1
    assert config.mqtt.max_packet_size == 65536
    assert config.mqtt.retain_available is False
    assert config.mqtt.keepalive_multiplier == 2.0
    assert config.session.receive_maximum == 10
    assert config.session.expiry_interval == NEVER
    assert config.auth.chain == ("username", "anonymous")
    assert config.auth.username.file == "/etc/users"
    assert config.plugins.load == ("a", "b")
    assert config.mqueue.priorities == {"a/#": 1}
    assert config.listener["tcp"]["default"].bind == "127.0.0.1:0"


def test_a_variable_finds_a_listener_whatever_its_case(read: Load) -> None:
    config = read(
        "[listener.tcp.In-Side]\nnodelay = true\n",
        {"MQTTD__LISTENER__TCP__IN_SIDE__BIND": ":1885"},
    )
    assert list(config.listener["tcp"]) == ["In-Side"]
    assert config.listener["tcp"]["In-Side"].bind == ":1885"


def test_all_mistakes_are_told_at_once(read: Load) -> None:
    """Each line names the file and line, the key, the value and what was expected."""
    found = mistakes(
        read,
        "[mqtt]\n"
        "max_paket_size = 5\n"
        "max_qos = 3\n"
        "connect_timeout = 10\n"
        'shared_strategy = "robin"\n'
        "[session]\n"
        "receive_maximum = 0\n"
        "[output]\n"
        'gather = "1s"\n',
        {"MQTTD__SYS__INTERVAL": "1x"},
    )
    assert found == [
        ":2: mqtt.max_paket_size: unknown key; the nearest known key is mqtt.max_packet_size",
        ":3: mqtt.max_qos = 3: expected a whole number from 0 to 2",
        ':4: mqtt.connect_timeout = 10: expected a time such as "30s", 100ms to 1h',
        ':5: mqtt.shared_strategy = "robin": expected one of "round_robin", "random", "sticky",'
        ' "hash_clientid", "hash_topic"',
        ":7: session.receive_maximum = 0: expected a whole number from 1 to 65535",
        ':9: output.gather = "1s": expected a time such as "1ms", 0s to 1ms',
        'environment MQTTD__SYS__INTERVAL: sys.interval = "1x": expected a time such as "30s",'
        " 0s to 1d",
    ]


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("[mqtt]\nmax_pakcet_size = 1", "mqtt.max_packet_size"),
        ("[mqtt]\nmax_inflight = 1", "session.max_inflight"),
        ("[cluster]\nendpoint = 'x'", "cluster.endpoints"),
        ("[mqt]\nmax_qos = 1", "mqtt"),
        ("[sesion]", "session"),
        ("[listner.tcp.a]\nbind = ':1'", "listener"),
        ("[auth.usrname]", "auth.username"),
        ("[auth]\nfile = 'x'", "auth.username.file"),
        ("[listener.tcp.a]\nbnid = ':1'", "listener.tcp.a.bind"),
        ("[listener.tpc.a]\nbind = ':1'", "listener.tcp.NAME"),
        ("max_qos = 1", "mqtt.max_qos"),
        ('"mqtt.max_qos" = 1', "mqtt.max_qos"),
        ("[listener.tcp.a]\nport = 1884", "listener.tcp.a.bind"),
        ("[listener.unix.a]\ncafile = 'x'", "listener.ssl.NAME.ca_file"),
        ("port = 1884", "listener.tcp.NAME.bind"),
        ("[acl]\nacces = 'x'", "listener.tcp.NAME.access"),
        ("[acces]", "listener.tcp.NAME.access"),
        ("[listener.wss.a]\nkeyfile = 'x'", "listener.wss.a.private_key"),
        ("[listener.ssl.a]\ncertfile = 'x'", "listener.ssl.a.certificate"),
        ("[session]\nmax_mqueue_len = 1", "mqueue.max_length"),
        ("[authorization]\nno_match = 'deny'", "acl.file"),
        ("[acl]\nno_match = 'deny'", "acl.nomatch"),
        ("[users]", "auth.username.file"),
        ("[rule_engine]", "plugins.load"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(read: Load, text: str, nearest: str) -> None:
    (found,) = mistakes(read, text)
    assert f"unknown key; the nearest known key is {nearest}" in found
    assert found.startswith(":")


@pytest.mark.parametrize("text", ["xyzzy = 1", "[node]\ncookie = 'x'", "[zone.a]"])
def test_a_key_that_is_like_none_is_not_guessed_at(read: Load, text: str) -> None:
    (found,) = mistakes(read, text)
    assert found.endswith(f"unknown key, and none is like it; {guess._ALL}")


def test_the_keys_that_other_names_stand_for_are_there() -> None:
    for key in guess._ELSEWHERE.values():
        assert key in OPTIONS or guess.is_table(key), key
    for key in guess._OF_LISTENERS.values():
        assert f"listener.ssl.NAME.{key}" in OPTIONS, key


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[mqtt]\nmax_packet_size = 10MB  # large\n",
            '; what is no number stands in quotes: "10MB"',
        ),
        ("[mqtt]\nmax_packet_size =\n", "(at line 2, column 18)"),
        ("mqtt.retain_available = True\n", "; it is either true or false, in these letters"),
        ("# ours\nlistener 1883\n", "makes a configuration"),
        ("listeners.tcp.default {\n  bind = 1883\n}\n", "coming-from-emqx.md has the keys"),
    ],
)
def test_a_line_that_is_no_toml_is_told_what_may_help(read: Load, text: str, told: str) -> None:
    (found,) = mistakes(read, text)
    assert found.startswith(": not valid TOML: ") and "at line" in found
    assert found.endswith(told)


def test_a_door_that_is_closed_takes_no_address(read: Load) -> None:
    read('[listener.ws.a]\nbind = ":18083"\n[admin.page]\nbind = "127.0.0.1:18083"\n')


def test_an_unknown_variable_names_the_nearest_known_one(read: Load) -> None:
    assert mistakes(read, "", {"MQTTD__MQTT__MAX_PAKET_SIZE": "1"}) == [
        "environment MQTTD__MQTT__MAX_PAKET_SIZE: unknown key; the nearest known key is"
        " MQTTD__MQTT__MAX_PACKET_SIZE"
    ]
    (found,) = mistakes(read, "", {"MQTTD__LISTENER__TCP__A__BNID": "1"})
    assert found.endswith("MQTTD__LISTENER__TCP__A__BIND")
    (found,) = mistakes(read, "", {"MQTTD__MQTT": "1"})
    assert (
        found == "environment MQTTD__MQTT: is a table; name a key in it, such as MQTTD__MQTT__KEY"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("node.name", '"a b"'),
        ("node.name", '""'),
        ("node.name", '"a\\n"'),
        ("node.data_dir", '""'),
        ("node.data_dir", '"a\\u0000b"'),
        ("mqtt.max_packet_size", '"1MX"'),
        ("mqtt.max_packet_size", '"1KB"'),
        ("mqtt.max_packet_size", '"257MiB"'),
        ("mqtt.max_packet_size", "true"),
        ("mqtt.max_packet_size", "1e6"),
        ("mqtt.max_packet_size", "99999999999999999999999999"),
        ("mqtt.max_client_id_length", "22"),
        ("mqtt.max_topic_alias", "65536"),
        ("mqtt.max_qos", "true"),
        ("mqtt.max_qos", '"1"'),
        ("mqtt.retain_available", "1"),
        ("mqtt.retain_available", '"yes"'),
        ("mqtt.server_keepalive", '"1500ms"'),
        ("mqtt.server_keepalive", '"65536s"'),
        ("mqtt.server_keepalive", '"never"'),
        ("mqtt.connect_timeout", "0"),
        ("mqtt.connect_timeout", "false"),
        ("mqtt.connect_timeout", '"never"'),
        ("mqtt.keepalive_multiplier", "0.5"),
        ("mqtt.keepalive_multiplier", "nan"),
        ("mqtt.keepalive_multiplier", "inf"),
        ("mqtt.response_information", '"a\\u0000"'),
        ("session.receive_maximum", "65536"),
        ("session.max_inflight", "0"),
        ("session.expiry_interval", '"0.5s"'),
        ("mqueue.priorities", "[]"),
        ("mqueue.priorities", '{ "a" = 256 }'),
        ("mqueue.priorities", '{ "a" = "high" }'),
        ("mqueue.priorities", '{ "" = 1 }'),
        ("mqueue.priorities", '{ "a/#/b" = 1 }'),
        ("mqueue.priorities", '{ "alarm/+x" = 1 }'),
        ("durability.topics", '{ "a/#/b" = "fsync" }'),
        ("durability.topics", '{ "$share/g/a" = "fsync" }'),
        ("trace.topics", '["a/#/b"]'),
        ("mqueue.priorities", '{ "$share/g/a" = 1 }'),
        ("auth.chain", '"username"'),
        ("auth.chain", '["username", "username"]'),
        ("auth.chain", "[1]"),
        ("auth.anonymous", "true"),
        ("auth.anonymous", '"yes"'),
        ("acl.nomatch", '"ignore"'),
        ("log.level", '"verbose"'),
        ("log.level", "2026-01-01"),
        ("listener.tcp.default.bind", "1883"),
        ("listener.tcp.default.bind", '"0.0.0.0"'),
        ("listener.tcp.default.backlog", "0"),
        ("listener.tcp.default.transport", '"asyncio"'),
        ("listener.tcp.default.mountpoint", '"dev/%c"'),
        ("listener.tcp.default.mountpoint", '"$dev/"'),
        ("listener.tcp.default.mountpoint", '"dev/${clientid}/"'),
    ],
)
def test_a_value_that_does_not_fit_is_refused(read: Load, key: str, value: str) -> None:
    table, _, name = key.rpartition(".")
    (found,) = mistakes(read, f"[{table}]\n{name} = {value}\n")
    assert found.startswith(f":2: {key} = ")
    assert "expected " in found


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("mqtt = 5", "mqtt"),
        ("[auth]\nusername = 'x'", "auth.username"),
        ("listener = 5", "listener"),
        ("[listener]\ntcp = 5", "listener.tcp"),
        ("[listener.tcp]\nbind = ':1883'", "listener.tcp.bind"),
        ("[[listener.tcp]]\nbind = ':1883'", "listener.tcp"),
    ],
)
def test_a_value_where_a_table_belongs_is_refused(read: Load, text: str, key: str) -> None:
    (found,) = mistakes(read, text)
    assert f"{key} = " in found
    assert "expected a table, [" in found


def test_a_value_in_place_of_a_table_does_not_hide_the_environment(read: Load) -> None:
    assert len(mistakes(read, "mqtt = 5", {"MQTTD__MQTT__MAX_QOS": "1"})) == 1


def test_a_listener_name_is_plain(read: Load) -> None:
    (found,) = mistakes(read, '[listener.tcp."a b"]')
    assert "expected a listener name" in found


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (
            '[output]\nlow_watermark = "1MiB"\n',
            ':2: output.low_watermark = "1MiB": expected less than output.high_watermark,'
            " which is 1MiB",
        ),
        (
            '[output]\nhigh_watermark = "64KiB"\n',
            ':1: output.low_watermark = "256KiB": expected less than output.high_watermark,'
            " which is 64KiB",
        ),
        (
            '[output]\nhigh_watermark = "8MiB"\nbacklog = "4MiB"\n',
            ':2: output.high_watermark = "8MiB": expected at most output.backlog, which is 4MiB',
        ),
        (
            '[listener.tcp.a]\nbind = ":1883"\n[listener.tcp.b]\nbind = "127.0.0.1:1883"\n',
            ':4: listener.tcp.b.bind = "127.0.0.1:1883": expected another address than'
            " listener.tcp.a.bind, which is :1883",
        ),
        (
            '[listener.ws.a]\nbind = ":18083"\n[admin.page]\nenabled = true\n',
            ':3: admin.page.bind = "127.0.0.1:18083": expected another address than'
            " listener.ws.a.bind, which is :18083",
        ),
    ],
)
def test_keys_at_odds_are_told(read: Load, text: str, mistake: str) -> None:
    assert mistakes(read, text) == [mistake]


def test_a_key_already_refused_is_not_told_twice(read: Load) -> None:
    assert len(mistakes(read, '[output]\nlow_watermark = "x"\nhigh_watermark = "64KiB"\n')) == 1


def test_free_ports_do_not_collide(read: Load) -> None:
    read('[listener.tcp.a]\nbind = ":0"\n[listener.tcp.b]\nbind = ":0"\n')


def test_a_socket_path_longer_than_the_system_allows_is_refused(read: Load) -> None:
    (found,) = mistakes(read, f'[admin]\nsocket = "/{"a" * 107}"\n')
    assert found.startswith(":2: admin.socket = ")
    assert "107 bytes" in found


def test_a_mistake_is_one_printable_line(read: Load) -> None:
    """What a file holds cannot write over the operator's terminal."""
    (found,) = mistakes(read, '"a\\u001b[2J\\nb" = 1')
    assert found.isprintable()
    (found,) = mistakes(read, f'[node]\nname = "\\u001b\\u202e{"x" * 9999}"')
    assert found.isprintable()
    assert len(found) < 250


@pytest.mark.parametrize("text", ["[mqtt", "[mqtt]\nmax_qos = \n", "[mqtt]\n[mqtt]\n", "a=" * 9])
def test_a_file_that_is_not_toml_is_refused_with_its_line(read: Load, text: str) -> None:
    (found,) = mistakes(read, text)
    assert found.startswith(": not valid TOML: ")


def test_a_table_that_is_there_twice_is_named(read: Load) -> None:
    (found,) = mistakes(read, "[auth.username]\n[mqtt]\n[auth.username]\n")
    assert found.startswith(
        ": not valid TOML: the table [auth.username] is there already, its keys go there (at line 3"
    )


@pytest.mark.parametrize(
    ("text", "line", "key", "first"),
    [
        ("[mqtt]\nmax_qos = 1\n# that was it\nmax_qos = 2\n", 4, "mqtt.max_qos", 2),
        ("[mqtt]\nmax_qos = 1\nmax_qos = 2", 3, "mqtt.max_qos", 2),
        ('[auth]\nchain = ["jwt"]\n"chain" = [\n"anonymous",\n]\n[log]\n', 3, "auth.chain", 2),
        ("[mqtt]\nmax_qos = 1\n[mqtt.max_qos]\n", 3, "mqtt.max_qos", 2),
        ("mqtt.max_qos = 1\nnode.name = 'a'\nmqtt . max_qos = 2\n", 3, "mqtt.max_qos", 1),
    ],
)
def test_a_key_that_is_there_twice_is_named_with_both_lines(
    read: Load, text: str, line: int, key: str, first: int
) -> None:
    (found,) = mistakes(read, text)
    assert found == f":{line}: {key}: is there already, in line {first}; leave one of them"


def test_a_file_nested_without_end_is_refused(read: Load) -> None:
    (found,) = mistakes(read, f"a = {'[' * 100_000}")
    assert "not valid TOML" in found


@pytest.mark.parametrize(
    "text",
    [
        "[" + "a." * 100_000 + "a]",
        "x = {" + "a." * 100_000 + "a = 1}",
        "'a' . \"b\"\t.a-b." * 30_000,
    ],
)
def test_a_key_of_many_parts_is_refused_before_anybody_goes_through_it(
    read: Load, text: str
) -> None:
    """250,000 parts had taken 27 seconds; they may be sent to be validated."""
    (found,) = mistakes(read, text)
    assert found.endswith("not valid TOML: nested too deeply")
    assert read(f'# {"." * 100}\n[node]\nname = "a.b"\n# {"10.0.0.1, " * 100}\n')


def test_a_number_without_end_is_a_mistake(read: Load) -> None:
    (found,) = mistakes(read, f"x = {'1' * 10_000}")
    assert "not valid TOML: Exceeds the limit" in found


def test_of_many_mistakes_the_first_are_told(read: Load) -> None:
    found = mistakes(read, "".join(f"[mqtx{i}]\n" for i in range(10_000)))
    assert len(found) == 101 and "mqtx99: unknown" in found[99] and "perhaps more" in found[100]
    # What may have been meant takes 40 ms for each: a viewer may have a text of theirs looked at.
    assert [("nearest" in each) for each in found[:12]] == [True] * 10 + [False] * 2


def test_of_many_listeners_at_one_port_each_is_told_of_one_other(read: Load) -> None:
    def text(host: str) -> str:
        return "".join(
            f'[listener.tcp.a{i}]\nbind = "{host.format(i // 200, i % 200)}:1883"\n'
            for i in range(3000)
        )

    assert len(read(text("127.0.{}.{}")).listener["tcp"]) == 3000
    found = mistakes(read, text("127.0.0.1"))
    assert "another address than listener.tcp.a0.bind" in found[0] and len(found) == 101
    (found_all,) = mistakes(
        read,
        '[listener.tcp.a]\nbind = "127.0.0.1:1883"\n[listener.ws.b]\nbind = ":1883"\n',
    )
    assert "listener.ws.b.bind" in found_all and "listener.tcp.a.bind" in found_all


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary.conf"
    binary.write_bytes(b"[mqtt]\n\xff\xfe")
    for path, reason in (
        (tmp_path / "missing.conf", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (binary, "not UTF-8 at byte 7"),
        ("nul\0", "cannot be read"),
    ):
        with pytest.raises(ConfigError) as caught:
            load(str(path), {})
        (found,) = caught.value.mistakes
        assert found.startswith(str(path))
        assert reason in found


def test_a_variable_that_is_not_utf8_is_refused(read: Load) -> None:
    (found,) = mistakes(read, "", {"MQTTD__MQTT__RESPONSE_INFORMATION": "a\udcff"})
    assert "mqtt.response_information" in found
    found.encode()


def test_the_configuration_cannot_be_changed_once_loaded(read: Load) -> None:
    config = read("")
    with pytest.raises(AttributeError):
        config.mqtt.max_qos = 1  # type: ignore[misc]
    assert msgspec.structs.replace(config.mqtt, max_qos=1).max_qos == 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.sampled_from(list(OPTIONS.values())), VALUES)
def test_any_value_is_read_or_refused(option: Option, value: object) -> None:
    """No value, of whatever type, gives anything but a checked value or a plain refusal."""
    try:
        read_value = option.read(value)
    except (ValueError, msgspec.ValidationError):
        return
    assert option.read(msgspec.to_builtins(value)) == read_value


@given(st.sampled_from(list(OPTIONS.values())), st.text(max_size=30))
def test_any_text_in_the_environment_is_read_or_refused(option: Option, text: str) -> None:
    variable = "MQTTD__" + option.path.upper().replace(".", "__")
    try:
        load(None, {variable: text})
    except ConfigError as error:
        assert error.mistakes


@given(st.text(max_size=200))
def test_any_name_in_the_environment_is_known_or_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        load(None, {f"MQTTD__{name}": "\x00"})


@pytest.mark.parametrize(("kind", "ours"), [("tls", "ssl"), ("mqtts", "ssl"), ("websockets", "ws")])
def test_a_kind_by_its_name_elsewhere_is_told_ours(tmp_path: Path, kind: str, ours: str) -> None:
    path = tmp_path / "mqttd.conf"
    path.write_text(f"[listener.{kind}.default]\nbind = ':8883'\n")
    with pytest.raises(ConfigError) as refused:
        load(str(path), {})
    assert refused.value.mistakes[0].endswith(
        f"unknown kind of listener; it is called listener.{ours} here"
    )


def test_of_a_table_the_entries_that_are_wrong_are_named(tmp_path: Path) -> None:
    """All of them were shown, whichever was meant."""
    path = tmp_path / "mqttd.conf"
    path.write_text('[durability.topics]\n"a/#" = "os"\n"orders/#" = "fsyncs"\n"b" = "none"\n')
    with pytest.raises(ConfigError) as failure:
        load(str(path), {})
    (mistake,) = failure.value.mistakes
    assert 'durability.topics = {"orders/#": "fsyncs"}: expected a table' in mistake


@pytest.mark.parametrize(
    ("bind", "told"),
    [
        ("0.0.0.0:4399", "h:4399"),
        ("[::]:4399", "h:4399"),
        ("[0:0::0]:4399", "h:4399"),
        (":4399", "h:4399"),
        ("10.0.0.1:4399", "10.0.0.1:4399"),
        ("[::1]:4399", "[::1]:4399"),
        ("node-1.example:4399", "node-1.example:4399"),
    ],
)
def test_other_nodes_are_told_no_address_that_stands_for_all(bind: str, told: str) -> None:
    """They would have dialled themselves."""
    assert Cluster(bind=bind).reached("h", 4399) == told
    assert Cluster(bind=bind, advertise="x:1").reached("h", 4399) == "x:1"
