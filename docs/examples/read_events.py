"""Print every event of a log: python docs/examples/read_events.py data/events"""

import sys

from mqttd.pipeline.log.reader import LogReader, events

log = LogReader(sys.argv[1])
for node, (earliest, latest) in log.bounds().items():
    for event in events(log, node, earliest, latest):
        print(event.seq, event.event, event.client_id, event.topic, event.payload)
