"""Publish what can be, and keep the rest: publish_or_keep.py data/events localhost:1883 rejected"""

import sys

from mqttd.pipeline.spark import register, session

#: What a topic name is (a client id may have a `#` in it); NULL is none.
IS_TOPIC = r"""
    coalesce(topic <> '' AND NOT topic RLIKE '[#+\u0000]' AND octet_length(topic) <= 65535
             AND size(split(topic, '/')) <= 256, false)
"""

if __name__ == "__main__":
    spark = register(session("alerts"))
    alerts = (
        spark.readStream.format("mqttd")
        .option("events", "message.publish")
        .load(sys.argv[1])
        .selectExpr("node", "seq", "concat('alerts/', client_id) as topic", "payload")
    )
    published = alerts.where(IS_TOPIC).select("topic", "payload").writeStream.format("mqttd")
    published.option("broker", sys.argv[2]).option("checkpointLocation", "state/alerts").start()
    rest = alerts.where(f"NOT {IS_TOPIC}").writeStream.format("parquet")
    rest.option("checkpointLocation", "state/rejected").start(sys.argv[3])
    spark.streams.awaitAnyTermination()
