"""Tables that the archive pipeline adds to without Spark's writers: Parquet files, Delta, Iceberg.

    micro-batch --> Arrow, on the driver --> Files    pyarrow, any file system it reaches
                                             Delta    package deltalake, any store it reaches
                                             Iceberg  package pyiceberg, any catalog it knows

Each adds a batch once, whatever is killed: a batch that Spark runs again has the same rows, so
that `Files`, whose names are made of query and batch, writes the same files again; `Delta` and
`Iceberg` commit its number with its rows, and pass over one that they have.

None needs a jar or renames. A batch has to fit into the driver's memory: `MOST` events at most
unless --max-events says otherwise.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, Final, Protocol

__all__ = ["FORMATS", "MOST", "Delta", "Files", "Iceberg", "Lake", "lake_of"]

#: Events of a micro-batch, if nothing else is said.
MOST: Final = 1_000_000

#: What tables are partitioned by.
BY: Final = ("date", "event")


class Lake(Protocol):
    """A table that grows by batches."""

    def add(self, rows: Any, query: str, number: int) -> None:
        """Add an Arrow table, batch `number` of `query`, unless it is in."""

    def compact(self, most: int) -> None:
        """Rewrite what has more than `most` small files, where that can be done."""


class Files:
    """Parquet files below the URL or directory `out`, by date and event; see `Lake`.

    A file of a local directory is there whole or not at all, as are the objects of stores.
    """

    def __init__(self, out: str) -> None:
        from pyarrow import fs

        try:
            self._fs, path = fs.FileSystem.from_uri(out if "://" in out else os.path.abspath(out))
        except Exception as error:
            raise ValueError(f"--out {out}: {error}") from None
        self._root = path.rstrip("/")

    def add(self, rows: Any, query: str, number: int) -> None:
        """Write the batch's files, in place of those of an attempt before."""
        from pyarrow import compute, parquet

        rows = rows.sort_by([("node", "ascending"), ("seq", "ascending")])
        for key in rows.select(BY).group_by(BY).aggregate([]).to_pylist():
            here = rows
            for name in BY:
                here = here.filter(compute.field(name) == key[name])
            here = here.drop_columns(list(BY))
            folder = "/".join([self._root, *(f"{name}={key[name]}" for name in BY)])
            name = f"{folder}/{query[:8]}-{number:08d}.parquet"
            if self._fs.type_name != "local":
                self._fs.create_dir(folder, recursive=True)
                parquet.write_table(here, name, filesystem=self._fs)
                continue
            os.makedirs(folder, exist_ok=True)
            parquet.write_table(here, f"{folder}/.{number:08d}.new", filesystem=self._fs)
            os.replace(f"{folder}/.{number:08d}.new", name)

    def compact(self, most: int) -> None:
        """Files stay as they are."""


class Delta:
    """A Delta Lake table at `out`, by date and event; see `Lake`."""

    def __init__(self, out: str) -> None:
        self._lake = _package("deltalake", "delta")
        self._out = out

    def _table(self) -> Any:
        found = self._lake.DeltaTable
        return found(self._out) if found.is_deltatable(self._out) else None

    def add(self, rows: Any, query: str, number: int) -> None:
        """Append it in one commit with the transaction (query, number)."""
        table = self._table()
        last = None if table is None else table.transaction_version(query)
        if last is not None and last >= number:
            return
        done = self._lake.CommitProperties(app_transactions=[self._lake.Transaction(query, number)])
        self._lake.write_deltalake(
            table if table is not None else self._out,
            rows,
            mode="append",
            partition_by=list(BY),
            commit_properties=done,
        )

    def compact(self, most: int) -> None:
        """Compact if a partition has more than `most` files."""
        table = self._table()
        if table is None:
            return
        files: dict[str, int] = {}
        for name in table.file_uris():
            folder = name.rpartition("/")[0]
            files[folder] = files.get(folder, 0) + 1
        if max(files.values(), default=0) > most:
            table.optimize.compact()


class Iceberg:
    """The Iceberg table `out`, as CATALOG/NAMESPACE.TABLE; see `Lake`.

    What pyiceberg is to know of the catalog stands where it looks for it: ~/.pyiceberg.yaml, or
    PYICEBERG_CATALOG__NAME__URI and the like.
    """

    def __init__(self, out: str) -> None:
        self._ice = _package("pyiceberg.catalog", "iceberg")
        name, slash, self._name = out.partition("/")
        if not slash or "." not in self._name:
            raise ValueError(f"--out {out}: expected CATALOG/NAMESPACE.TABLE of an Iceberg table")
        try:
            self._catalog = self._ice.load_catalog(name)
        except Exception as error:
            raise ValueError(f"--out {out}: catalog {name}: {error}") from None

    def add(self, rows: Any, query: str, number: int) -> None:
        """Append it in one transaction with the property that says how far the query is."""
        done = f"mqttd.query.{query}"
        if not self._catalog.table_exists(self._name):
            self._create(rows.schema)
        table = self._catalog.load_table(self._name)
        if int(table.properties.get(done, -1)) >= number:
            return
        with table.transaction() as change:
            change.append(rows)
            change.set_properties({done: str(number)})

    def _create(self, schema: Any) -> None:
        transforms = _package("pyiceberg.transforms", "iceberg")
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        table = self._catalog.create_table(self._name, schema)
        with table.update_spec() as spec:
            for one in BY:
                spec.add_field(one, transforms.IdentityTransform(), one)

    def compact(self, most: int) -> None:
        """Files stay as they are: Iceberg's engines rewrite them."""


FORMATS: Final[dict[str, Callable[[str], Lake]]] = {
    "files": Files,
    "delta": Delta,
    "iceberg": Iceberg,
}


def lake_of(kind: str, out: str) -> Lake:
    """The table at `out`; raises ValueError, or ImportError without what it needs."""
    return FORMATS[kind](out)


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"--format {extra} needs pip install 'mqttd[{extra}]' ({error})"
        ) from None
