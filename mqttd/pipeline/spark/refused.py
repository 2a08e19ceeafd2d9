"""The reader of a stream whose options are wrong: it tells of that, and of nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

__all__ = ["RefusedReader"]


class RefusedReader(DataSourceStreamReader):
    """What raises `error` as soon as it is asked for anything.

    Spark 4.3 stops a reader that it could not make, and tells of that instead of the reason.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error

    def initialOffset(self) -> Any:
        """Raises the error."""
        raise self.error

    def latestOffset(self, start: Any, limit: Any) -> Any:
        """Raises the error."""
        raise self.error

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Raises the error."""
        raise self.error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raises the error."""
        raise self.error
