"""The pipeline runs where neither Twisted nor zope is: Spark's driver and executors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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

#: What a batch query does, on the driver and on an executor.
READ = """
import tempfile
from mqttd.pipeline.log.blocks import encode_block
from mqttd.pipeline.log.writer import Encoded, Writer
from mqttd.pipeline.spark.options import read_options
from mqttd.pipeline.spark.source import BatchReader
from pyspark.sql.types import StringType, StructField, StructType

with tempfile.TemporaryDirectory() as path:
    writer = Writer(path, "n1")
    row = (11, 1, 0x38, bytes(15) + b"1", "c", "", "", "a/b", "", 1, b"x", b"")
    writer.write([Encoded(0, 2, encode_block([row, row], 0))])
    writer.close()
    options = read_options({"path": path, "subscribe": "a/+", "includeHeaders": "true"})
    schema = StructType([StructField(name, StringType()) for name in options.columns])
    reader = BatchReader(options, schema)
    (task,) = reader.partitions()
    print("rows", sum(batch.num_rows for batch in reader.read(task)))
    for name in sorted({name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)):
        if not name.startswith("_"):
            print("uses", name)
"""


#: What any Python of this environment has loaded before a line of the program runs.
FOUND_EVERYWHERE = {
    name.split(".")[0]
    for name in subprocess.check_output(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], text=True
    ).split()
}


def imported(folders: list[str], *blocked: str, then: str = "") -> list[str]:
    program = PROGRAM.format(folders=folders, blocked=set(blocked)) + then
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_spark_reads_without_twisted_and_zope() -> None:
    folders = ["mqttd.pipeline.log", "mqttd.pipeline.spark"]
    found = imported(folders, "twisted", "zope", then=READ)
    assert "mqttd.pipeline.spark.source" in found and "rows 2" in found
    used = {line.removeprefix("uses ") for line in found if line.startswith("uses ")}
    # numpy, pandas and those behind pandas are what pyspark itself asks for to read Arrow.
    assert used - FOUND_EVERYWHERE <= {
        "mqttd", "mqttd__mypyc", "pyspark", "py4j", "pyarrow", "numpy", "pandas",
        "cython_runtime", "dateutil", "isal", "pytz", "six", "tzdata",
    }  # fmt: skip


@pytest.mark.slow
def test_the_log_needs_the_standard_library_only() -> None:
    blocked = ("twisted", "zope", "pyspark", "pyarrow", "numpy", "pandas", "msgspec")
    assert "mqttd.pipeline.log.reader" in imported(["mqttd.pipeline.log"], *blocked)
