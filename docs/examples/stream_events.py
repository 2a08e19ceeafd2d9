"""Count publishes per topic as they come: python docs/examples/stream_events.py data/events"""

import sys

from mqttd.pipeline.spark import register, session

spark = register(session("topics"))
events = (
    spark.readStream.format("mqttd")
    .option("path", sys.argv[1])
    .option("events", "message.publish")
    .option("startingOffsets", "earliest")
    .load()
)
query = events.groupBy("topic").count().writeStream.outputMode("complete").format("console").start()
query.awaitTermination()
