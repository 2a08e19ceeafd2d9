"""Tables of the archive pipeline: a batch is added once, whenever it is added again."""

from __future__ import annotations

import importlib
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import dataset

from mqttd.pipeline.spark.arrow import ARROW_TYPES
from mqttd.pipeline.spark.pipelines.lake import FORMATS, lake_of
from tests.support.needs import missing
from tests.unit.pipeline.logs import START

QUERY = "3d5b2a4e-0000-4000-8000-000000000000"


def batch(first: int, count: int) -> Any:
    """Events of two days and two kinds, as they come from Spark."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "seq": list(numbers),
            "node": ["n"] * count,
            "event": ["message.publish" if i % 3 else "client.connected" for i in numbers],
            "timestamp": pa.array([START + i for i in numbers], ARROW_TYPES["TIMESTAMP"]),
            "payload": pa.array([b"%d" % i for i in numbers], pa.binary()),
            "headers": pa.array(
                [[{"key": "a", "value": str(i)}] for i in numbers],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
            ),
            "date": [date(2026, 1, 1 + i % 2) for i in numbers],
        }
    )


def read(kind: str, out: str) -> list[dict[str, Any]]:
    """What another program finds there."""
    if kind == "delta":
        table = importlib.import_module("deltalake").DeltaTable(out).to_pyarrow_table()
    elif kind == "iceberg":
        catalog, _, name = out.partition("/")
        table = importlib.import_module("pyiceberg.catalog").load_catalog(catalog)
        table = table.load_table(name).scan().to_arrow()
    else:
        table = dataset.dataset(out, partitioning="hive").to_table()
    found: list[dict[str, Any]] = table.to_pylist()
    return sorted(found, key=lambda row: int(row["seq"]))


@pytest.fixture(params=FORMATS)
def place(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A kind of table and where one may be made."""
    kind: str = request.param
    if kind != "files":
        package = {"delta": "deltalake", "iceberg": "pyiceberg"}[kind]
        try:
            importlib.import_module(package)
        except ImportError:
            missing(package, f"pip install 'mqttd[{kind}]'")
    if kind == "iceberg":
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", tmp_path.as_uri())
        # It reads the environment when it is imported, which another test may have done.
        config = importlib.import_module("pyiceberg.utils.config").Config()
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", config)
        return kind, "lake/mqttd.events"
    return kind, str(tmp_path / "lake")


@pytest.mark.slow
def test_14_a_batch_that_is_added_again_is_there_once(place: tuple[str, str]) -> None:
    kind, out = place
    lake_of(kind, out).add(batch(0, 40), QUERY, 0)
    lake_of(kind, out).add(batch(40, 25), QUERY, 1)
    for _ in range(2):  # by other drivers, which do not know of the first
        lake_of(kind, out).add(batch(40, 25), QUERY, 1)
    lake_of(kind, out).add(batch(65, 5), QUERY, 2)
    rows = read(kind, out)
    assert [row["seq"] for row in rows] == list(range(70))
    for row in rows:
        assert row["payload"] == b"%d" % row["seq"]
        assert row["headers"] == [{"key": "a", "value": str(row["seq"])}]
        assert row["event"] == ("message.publish" if row["seq"] % 3 else "client.connected")
        assert str(row["date"]) == f"2026-01-0{1 + row['seq'] % 2}"


def test_14_a_delta_table_is_compacted_and_stays_the_same(tmp_path: Path) -> None:
    lake = pytest.importorskip("deltalake")
    out = str(tmp_path / "lake")
    for number in range(6):
        lake_of("delta", out).add(batch(10 * number, 10), QUERY, number)
    before = read("delta", out)
    lake_of("delta", out).compact(3)
    assert len(lake.DeltaTable(out).file_uris()) == 4
    assert read("delta", out) == before and len(before) == 60
    lake_of("delta", out).add(batch(50, 10), QUERY, 5)
    assert read("delta", out) == before


@pytest.mark.parametrize(
    ("kind", "out", "told"),
    [("files", "nowhere://x", "--out nowhere"), ("iceberg", "events", "CATALOG/NAMESPACE")],
)
def test_14_a_wrong_place_is_told(kind: str, out: str, told: str) -> None:
    if kind == "iceberg":
        pytest.importorskip("pyiceberg")
    with pytest.raises(ValueError, match=told):
        lake_of(kind, out)
