"""Publish what is too hot: python docs/examples/publish_alerts.py data/events localhost:1883"""

import sys

from mqttd.pipeline.spark import register, session

spark = register(session("alerts"))
hot = (
    spark.readStream.format("mqttd")
    .option("subscribe", "sensors/#")
    .load(sys.argv[1])
    .where("try_cast(string(payload) as double) > 80")
    .selectExpr("concat('alerts/', client_id) as topic", "payload", "1 as qos")
)
query = (
    hot.writeStream.format("mqttd")
    .option("broker", sys.argv[2])
    .option("checkpointLocation", "state/alerts")
    .start()
)
query.awaitTermination()
