"""Messages of all nodes of a cluster, as they come: cluster_events.py http://etcd:2379 TOKEN"""

import sys

from mqttd.pipeline.spark import register, session


def of_cluster(spark, etcd, token):
    """The events of all nodes as one stream; `etcd`: URLs with commas between."""
    return (
        spark.readStream.format("mqttd")
        .option("cluster", "mqttd")
        .option("etcd", etcd)
        .option("token", token)
        .option("startingOffsets", "earliest")
        .load()
    )


if __name__ == "__main__":
    events = of_cluster(register(session("cluster")), sys.argv[1], sys.argv[2])
    shown = events.select("node", "seq", "event", "topic").writeStream.format("console")
    shown.start().awaitTermination()
