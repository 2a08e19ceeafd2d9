"""The pipeline runs where neither Twisted nor zope is: Spark's driver and executors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

PROGRAM = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocked())
import importlib, pkgutil
import mqttd.pipeline
for folder in {folders!r}:
    package = importlib.import_module(folder)
    for module in pkgutil.walk_packages(package.__path__, folder + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            print(module.name)
"""


def imported(folders: list[str], *blocked: str) -> list[str]:
    program = PROGRAM.format(folders=folders, blocked=set(blocked))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_spark_reads_without_twisted_and_zope() -> None:
    found = imported(["mqttd.pipeline.log", "mqttd.pipeline.spark"], "twisted", "zope")
    assert "mqttd.pipeline.spark.source" in found


def test_the_log_needs_the_standard_library_only() -> None:
    blocked = ("twisted", "zope", "pyspark", "pyarrow", "numpy", "pandas", "msgspec")
    assert "mqttd.pipeline.log.reader" in imported(["mqttd.pipeline.log"], *blocked)
