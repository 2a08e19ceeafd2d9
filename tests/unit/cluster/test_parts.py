"""The parts of a cluster that need neither etcd nor a socket."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from mqttd.cluster.etcd.keys import Keys, Member, member_of
from mqttd.cluster.etcd.reading import chunk_of
from mqttd.cluster.links.hello import Hello, hello_of
from mqttd.cluster.links.tls import plain_etcd
from mqttd.cluster.refused import refused
from mqttd.cluster.routes.view import filters_of
from mqttd.config.load import ConfigError, from_tables, load
from mqttd.config.schema import Config
from mqttd.mesh.frames import ADD, BEGIN, END, REMOVE, frame, packed
from mqttd.options import StartError, check_cluster
from mqttd.workers.nodes import NodesService
from mqttd.workers.supervisor import WorkersService
from tests.support.certificates import Authority

NUMBER = st.integers(0, (1 << 64) - 1)


@given(st.builds(Hello, st.text(max_size=64), st.text(max_size=64), *[NUMBER] * 5), st.binary())
def test_a_hello_comes_out_as_it_went_in(hello: Hello, rest: bytes) -> None:
    data = hello.dump()
    assert hello_of(data + rest) == (hello, rest)
    for end in range(len(data)):
        assert hello_of(data[:end]) is None


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n", b"\x10\x0c\x00\x04MQTT", frame(0x0D, b"\x05other"),
     frame(0x0D, b"x" * 5000)[:4999]],
)  # fmt: skip
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"node|hello|value"):
        hello_of(data)


@pytest.mark.parametrize(
    ("theirs", "spoken"),
    [((1, 1), 1), ((1, 2), 2), ((1, 3), 3), ((1, 4), 4), ((2, 6), 5), ((6, 7), 0)],
)
def test_the_highest_version_that_both_speak(theirs: tuple[int, int], spoken: int) -> None:
    assert Hello("c", "n", 1, 1, 1, 0, 0, theirs).version() == spoken


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcdef")), max_size=60), st.data())
def test_chunks_say_what_there_is_from_wherever_one_begins(
    changes: list[tuple[bool, str]], data: st.DataObject
) -> None:
    """Everything, written anew among changes, is the same as all the changes."""
    wanted: set[str] = set()
    chunks: list[bytes] = []
    begins = [0]
    ends: list[tuple[int, set[str]]] = []
    for add, name in changes:
        chunks.append(frame(ADD if add else REMOVE, packed([name.encode()])))
        (wanted.add if add else wanted.discard)(name)
        if data.draw(st.integers(0, 9)) == 0:
            begins.append(len(chunks))
            some = [each.encode() for each in sorted(wanted)]
            half = len(some) // 2
            chunks.append(frame(BEGIN, b"\0") + frame(ADD, packed(some[:half])))
            ends.append((len(chunks), set(wanted)))
            chunks.append(frame(ADD, packed(some[half:])) + frame(END, b"\0"))
    for begin in begins:
        assert filters_of(map(chunk_of, chunks[begin:])) == wanted
    for end, then in ends:  # what was before is still there
        assert filters_of(map(chunk_of, chunks[:end])) == then


def test_keys_and_members_come_back() -> None:
    keys = Keys("c")
    assert keys.parts(keys.node("n")) == ("node", "n", "")
    assert keys.parts(keys.route("n", 255, 1)) == ("route", "n", "00000000000000ff/0000000001")
    assert keys.parts(keys.taken("n", "a/b/\u00fc")) == ("taken", "n", "a/b/\u00fc")
    assert not keys.own("all/x").startswith(keys.all)
    member = Member("n", "id", "host:1", "0.2", (1, 1), True, 7)
    assert member_of("n", member.dump(), 7) == member


def test_the_example_is_a_node() -> None:
    shown = load(str(Path(__file__).parents[3] / "docs/examples/node.conf"), {})
    assert shown.cluster.kind == "etcd"
    assert not refused(shown)
    assert not plain_etcd(shown.cluster)


@pytest.mark.parametrize(
    ("endpoints", "said"),
    [
        (["http://127.0.0.1:2379", "http://localhost:2379", "http://[::1]:2379"], ""),
        (["https://etcd-1:2379"], ""),
        (["https://etcd-1:2379", "http://etcd-2:2379"], "http://etcd-2:2379"),
        (["http://10.0.0.7:2379"], "every right of a node"),
    ],
)
def test_an_etcd_in_plain_beyond_this_machine_is_warned_of(endpoints: list[str], said: str) -> None:
    tables = {"cluster": {"kind": "etcd", "endpoints": endpoints}}
    warned = plain_etcd(from_tables(tables, ".").cluster)
    assert said in warned
    assert bool(warned) == bool(said)


def test_what_does_not_go_together_with_a_cluster_is_named() -> None:
    tables = {"cluster": {"kind": "etcd"}, "session": {"upgrade_qos": True}}
    assert "session.upgrade_qos = true" in refused(from_tables(tables, "."))
    assert not refused(Config())


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"bind": ":4370"}, "nodes do not speak in plain"),
        ({"certificate": "a.crt", "private_key": "a.key"}, "cluster.ca_file"),
        ({"etcd_certificate": "a.crt"}, "cluster.etcd_private_key"),
        ({"etcd_user": "mqttd"}, "cluster.etcd_password_file"),
        ({"etcd_password_file": "secret"}, "cluster.etcd_user"),
        ({"endpoints": []}, "at least one URL"),
        ({"endpoints": ["etcd:2379"]}, "cluster.endpoints"),
        ({"name": "a/b"}, "cluster.name"),
        ({"lease": "1s"}, "cluster.lease"),
    ],
)
def test_what_does_not_go_together_is_said(cluster: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        from_tables({"cluster": {"kind": "etcd", **cluster}}, ".")


def test_a_node_that_cannot_be_is_refused_before_anything_is_begun(tmp_path: Path) -> None:
    """By who would start it: a process that ends at once would be started for ever."""
    tables = {
        "cluster": {"kind": "etcd"},
        "node": {"workers": 2, "data_dir": "data"},
        "session": {"upgrade_qos": True},
    }
    with pytest.raises(StartError, match=r"session\.upgrade_qos = true is not possible"):
        NodesService(from_tables(tables, str(tmp_path)), Clock(), None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("workers", [1, 2])
def test_who_is_alone_replicates_nowhere(tmp_path: Path, workers: int) -> None:
    config = from_tables(
        {"session": {"replicate": "jetstream"}, "node": {"workers": workers}}, str(tmp_path)
    )
    with pytest.raises(StartError, match="needs a cluster"):
        check_cluster(config)
    with pytest.raises(StartError, match="needs a cluster"):
        WorkersService(config, Clock(), None)


@pytest.mark.parametrize("key", ["password_file", "token_file", "ca_file"])
def test_a_file_for_nats_that_is_not_there_is_named_by_its_key(tmp_path: Path, key: str) -> None:
    tables = {
        "cluster": {"kind": "etcd"},
        "session": {"replicate": "jetstream"},
        "store": {"kind": "sqlite"},
        "jetstream": {"tls": True, "user": "mqttd", key: "absent"},
    }
    said = rf"^jetstream\.{key} = '{tmp_path}/absent': No such file"
    with pytest.raises(StartError, match=said):
        check_cluster(from_tables(tables, str(tmp_path)))


#: What of a certificate cannot work, and what is said of it.
_BAD = {
    "key": r"^cluster\.private_key = '.*/node\.key': it is not the key of .*/node\.crt",
    "name": r"^cluster\.certificate = '.*/node\.crt': it names 'b'; expected node\.name,.* 'a'",
    "expired": r"^cluster\.certificate = '.*/node\.crt': expired on 20",
    "authority": r"^cluster\.certificate = .*: expected one that leads to cluster\.ca_file",
    "use": r"^cluster\.certificate = .*: it is not for serverAuth; expected serverAuth and client",
    "absent": r"^cluster\.private_key = '.*/node\.key': No such file",
    "no key": r"^cluster\.certificate = .*: this and .*/node\.key: expected PEM",
}


@pytest.mark.parametrize("fault", ["", *_BAD])
def test_a_certificate_that_cannot_work_is_refused(tmp_path: Path, fault: str) -> None:
    ours = Authority()
    ours.write(tmp_path)
    shown = (Authority() if fault == "authority" else ours).node("b" if fault == "name" else "a")
    if fault == "expired":
        shown = ours.issue("a", [], True, -1, both=True)
    elif fault == "use":
        shown = ours.client("a")
    shown.write(tmp_path, "node")
    if fault == "key":
        (tmp_path / "node.key").write_bytes(ours.node("a").key_pem())
    elif fault == "no key":
        (tmp_path / "node.key").write_text("a key")
    elif fault == "absent":
        (tmp_path / "node.key").unlink()
    tables = {
        "node": {"name": "a"},
        "cluster": {
            "kind": "etcd", "certificate": "node.crt", "private_key": "node.key",
            "ca_file": "ca.crt",
        },
    }  # fmt: skip
    config = from_tables(tables, str(tmp_path))
    if not fault:
        return check_cluster(config)
    with pytest.raises(StartError, match=_BAD[fault]):
        check_cluster(config)


def test_a_certificate_has_the_names_of_all_nodes_of_a_machine(tmp_path: Path) -> None:
    ours = Authority()
    ours.write(tmp_path)
    ours.node("a").write(tmp_path, "node")
    tables = {
        "node": {"name": "a", "workers": 2},
        "cluster": {
            "kind": "etcd", "certificate": "node.crt", "private_key": "node.key",
            "ca_file": "ca.crt",
        },
    }  # fmt: skip
    with pytest.raises(StartError, match="expected node.name, which is 'a-2'"):
        check_cluster(from_tables(tables, str(tmp_path)))
    both = [x509.DNSName(name) for name in ("a", "a-2")]
    ours.issue("a", both, True, both=True).write(tmp_path, "node")
    check_cluster(from_tables(tables, str(tmp_path)))


def test_who_is_alone_imports_nothing_of_it() -> None:
    code = "import sys, mqttd.service; print([n for n in sys.modules if 'mqttd.cluster' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
