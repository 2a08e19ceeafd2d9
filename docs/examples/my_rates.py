"""A pipeline's function in a query of one's own: python docs/examples/my_rates.py data/events"""

import sys

from mqttd.pipeline.spark import register, session
from mqttd.pipeline.spark.pipelines import rates

spark = register(session("my rates"))
events = spark.readStream.format("mqttd").load(sys.argv[1])
found = rates.frame(events, window="10 seconds", levels=3)
found.writeStream.format("console").start().awaitTermination()
