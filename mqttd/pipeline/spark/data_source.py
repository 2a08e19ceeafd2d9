"""The data source `mqttd` as Spark gets it: a class that finds the rest when it is used.

    driver program --register--> class, by value --> Spark's planner (a Python process beside the
                                                     driver that knows nothing of --py-files)
                                                       '-- `search` --> mqttd.pipeline.spark.*
                                 mqttd.zip --------> executors

Nothing but Spark's base class is imported at the top, and `plain`, which travels along: the planner
has to be able to unpickle it.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql.datasource import DataSource

from mqttd.pipeline.spark.plain import plain

__all__ = ["MqttdDataSource"]


class MqttdDataSource(DataSource):
    """The format `mqttd` of ``spark.read``, ``readStream``, ``write`` and ``writeStream``."""

    #: Where the package is on the driver's machine.
    search: tuple[str, ...] = ()
    #: How many tasks run at once, if that is known.
    cores: int = 0

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "mqttd"

    def _find(self) -> None:
        for place in self.search:
            if place not in sys.path:
                sys.path.append(place)

    def _read_options(self, schema: Any = None) -> Any:
        self._find()
        from mqttd.pipeline.spark.options import CORES, read_options
        from mqttd.pipeline.spark.table import given

        return read_options(given(self.options, schema), self.cores or CORES)

    @plain
    def schema(self) -> Any:
        """The columns asked for; raises ValueError for a wrong option."""
        options = self._read_options()
        from mqttd.pipeline.spark.table import kept

        return kept(options, self.options)

    @plain
    def reader(self, schema: Any) -> Any:
        """For batch queries."""
        options = self._read_options(schema)
        from mqttd.pipeline.spark.source import BatchReader

        return BatchReader(options, schema)

    @plain
    def streamReader(self, schema: Any) -> Any:
        """For streaming queries."""
        self._find()
        from mqttd.pipeline.spark.refused import RefusedReader
        from mqttd.pipeline.spark.stream import StreamReader

        try:
            return StreamReader(self._read_options(schema), schema)
        except ValueError as error:
            return RefusedReader(error)

    def _write_options(self, schema: Any) -> Any:
        self._find()
        from mqttd.pipeline.spark.sink_options import read_sink_options

        return read_sink_options(self.options, schema)

    @plain
    def writer(self, schema: Any, overwrite: bool) -> Any:
        """For ``df.write``; raises ValueError for a mode that would take something away."""
        options = self._write_options(schema)
        if overwrite:
            raise ValueError(
                'mqttd: mode("overwrite"): what was published cannot be taken back; use'
                ' mode("append")'
            )
        from mqttd.pipeline.spark.sink import BatchWriter

        return BatchWriter(options, schema)

    @plain
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """For ``df.writeStream``."""
        options = self._write_options(schema)
        from mqttd.pipeline.spark.sink import StreamWriter

        return StreamWriter(options, schema)
