"""Spark reads the broker's event log: the data source `mqttd`.

    from mqttd.pipeline.spark import register, session
    spark = register(session("rates"))            # or register(any SparkSession of yours)
    spark.readStream.format("mqttd").option("path", "data/events").load()

Needs pyspark and pyarrow (``pip install mqttd[spark]``) and Java; neither Twisted nor zope.
Options: docs/reference/spark.md.
"""

from mqttd.pipeline.spark.metrics import progress
from mqttd.pipeline.spark.sessions import NoJava, register, session

__all__ = ["NoJava", "progress", "register", "session"]
