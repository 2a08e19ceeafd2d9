"""``python -m mqttd.pipeline.spark PIPELINE ...``: run one of the pipelines, on a laptop say."""

from __future__ import annotations

import sys

from mqttd.pipeline.spark.pipelines.command import main

if __name__ == "__main__":
    sys.exit(main())
