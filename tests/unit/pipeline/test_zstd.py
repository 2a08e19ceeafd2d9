"""mqttd.pipeline.log.zstd: whoever compresses, everybody reads it; and nothing harms anybody."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator

import pytest

from mqttd.pipeline.log import zstd as module
from mqttd.pipeline.log.zstd import QUICK, Codec, zstd

KINDS = ("_Zstandard", "_Standard", "_Arrow")


def codecs(level: int = 1) -> dict[str, Codec]:
    """Those that there are here."""
    found: dict[str, Codec] = {}
    for kind in KINDS:
        try:
            found[kind] = getattr(module, kind)(level)
        except ImportError:
            pass
    return found


def texts() -> Iterator[bytes]:
    chance = random.Random(3)
    yield b"a" * 48
    yield b"".join(b'{"n": %d},' % chance.randrange(10_000) for _ in range(30_000))
    yield chance.randbytes(700 << 10)
    yield bytes(3 << 20)


@pytest.mark.parametrize("level", [QUICK, 1, 3])
def test_14_what_one_compresses_the_others_read(level: int) -> None:
    assert {"_Zstandard", "_Arrow"} <= codecs().keys()
    for text in texts():
        for by in codecs(level).values():
            frame = by.compress(text)
            for one in codecs().values():
                assert one.decompress(frame, len(text)) == text
                assert one.decompress(frame + frame, 2 * len(text)) == text + text


@pytest.mark.parametrize("kind", KINDS)
def test_14_what_is_no_frame_or_has_another_length_is_refused(kind: str) -> None:
    codec = codecs().get(kind)
    if codec is None:
        pytest.skip(f"{kind} is not to be had here")
    frame = codec.compress(b"text" * 100)
    for harmed in (b"", b"text" * 100, frame[:-3], frame[:9] + b"\xff" * 9 + frame[18:]):
        with pytest.raises((ValueError, OSError)):
            codec.decompress(harmed, 400)
    with pytest.raises((ValueError, OSError)):
        codec.decompress(frame, 399)
    assert codec.decompress(codec.compress(b"text" * 100), 400) == b"text" * 100


def test_14_the_bytes_that_everybody_has_are_not_written_to() -> None:
    """Python has one object for each bytes of one byte: a frame must not be unpacked into it."""
    frame = codecs()["_Arrow"].compress(b"\x07")
    for codec in codecs().values():
        assert codec.decompress(frame, 1) == b"\x07"
    assert bytes(1) == b"\x00" and bytes([7]) == b"\x07" and bytes(0) == b""


def test_14_threads_compress_with_one_codec() -> None:
    codec, wrong = zstd(), []

    def work(seed: int) -> None:
        text = random.Random(seed).randbytes(1000) * 200
        for _ in range(50):
            if codec.decompress(codec.compress(text), len(text)) != text:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.fixture
def anew() -> Iterator[None]:
    """Nothing is known of where zstd comes from, before and after."""
    zstd.cache_clear()
    yield
    zstd.cache_clear()


@pytest.mark.usefixtures("anew")
class TestWhereItComesFrom:
    """The package zstandard, else Python's own, else pyarrow's, else it says what to install."""

    def test_14_the_package_is_asked_first(self) -> None:
        assert type(zstd()).__name__ == "_Zstandard"

    def test_14_else_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "zstandard", None)
        assert type(zstd()).__name__ in ("_Standard", "_Arrow")

    def test_14_without_any_the_message_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("zstandard", "compression", "pyarrow"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match="pip install zstandard"):
            zstd()
