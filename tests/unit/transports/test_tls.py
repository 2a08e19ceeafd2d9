"""The TLS side of a listener: what its files say of their own end."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqttd.config.schema import SslListener
from mqttd.transports.tls import Tls, TlsError
from tests.support.certificates import Authority


def listening(folder: Path, **more: str) -> SslListener:
    files = {"certificate": "server.crt", "private_key": "server.key", "ca_file": "ca.crt",
             "crl_file": "ca.crl", **more}  # fmt: skip
    return SslListener(
        verify="required", **{key: str(folder / name) for key, name in files.items()}
    )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority()
    made.write(tmp_path)
    made.server("localhost").write(tmp_path, "server")
    return made


def test_every_file_that_is_over_is_told(tmp_path: Path, authority: Authority) -> None:
    """The certificate, one of a further host name, a revocation list: what is over is named."""
    settings = listening(tmp_path, sni_directory="sni")
    authority.server("one.example").write(tmp_path / "sni", "one")
    assert Tls(settings).expired() == ""
    authority.server("one.example", days=-1).write(tmp_path / "sni", "one")
    assert "one.crt: expired on" in Tls(settings).expired()
    authority.server("one.example").write(tmp_path / "sni", "one")
    authority.write(tmp_path, days=-1)
    assert "ca.crl: expired on" in Tls(settings).expired()
    authority.server("localhost", days=-1).write(tmp_path, "server")
    assert "server.crt: expired on" in Tls(settings).expired()


def test_a_reload_with_a_fault_keeps_everything(tmp_path: Path, authority: Authority) -> None:
    tls = Tls(listening(tmp_path))
    before = tls.context, tls.not_after
    for name, text in (("ca.crl", "-----BEGIN X509 CRL-----"), ("server.crt", "nothing")):
        good = (tmp_path / name).read_bytes()
        (tmp_path / name).write_text(text)
        with pytest.raises(TlsError, match=name):
            tls.reload()
        assert (tls.context, tls.not_after) == before
        assert tls.expired() == ""
        (tmp_path / name).write_bytes(good)
    authority.server("localhost", days=20).write(tmp_path, "server")
    tls.reload()
    assert tls.not_after > before[1]
