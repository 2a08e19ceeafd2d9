"""Writes the project of a new plugin, from the one that is installed as a living example.

    mqttd_plugins/template/__init__.py, plugin.py, test_template.py, template.conf
                 |  "template" -> NAME, "Template" -> Name
                 v
    mqttd-NAME/  mqttd_plugins/NAME/..., tests/, etc/plugins/NAME.conf, setup.cfg, README.md

Promise: what is written passes its own tests as it is; no file that is there is overwritten.
"""

from __future__ import annotations

import os
import re
from importlib.resources import files
from keyword import iskeyword
from typing import Final

from mqttd import __version__

__all__ = ["write_project"]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")

SETUP_CFG: Final = """\
[metadata]
name = mqttd-{dashed}
version = 0.1.0
description = A plugin for mqttd.
license = Apache-2.0

[options]
python_requires = >=3.11
# Plugins are looked for in directories: without this line an editable install is not found.
package_dir =
    = .
# mqttd_plugins itself has no __init__.py here, and never gets one.
packages = find_namespace:
install_requires =
    mqttd

[options.packages.find]
include =
    mqttd_plugins*

[options.extras_require]
test =
    pytest
"""

PYPROJECT: Final = """\
[build-system]
requires = ["setuptools>=70"]
build-backend = "setuptools.build_meta"

[tool.pytest.ini_options]
testpaths = ["tests"]
"""

README: Final = """\
# {name}

A plugin for [mqttd](https://pypi.org/project/mqttd/), written from the template of version
{version}.

| File | What it is |
|---|---|
| `mqttd_plugins/{name}/__init__.py` | the declaration: name, version, where the code is |
| `mqttd_plugins/{name}/plugin.py` | the code: delete the hooks that you do not need |
| `etc/plugins/{name}.conf` | its configuration; goes to `etc/plugins/` of the broker |
| `tests/test_{name}.py` | tests, without a socket |

Try it:

    pip install -e '.[test]'
    pytest
    mqttd-ctl plugins load {name}
    mqttd-ctl {name} last
    mqttd-ctl plugins info {name}

Change `plugin.py`, then `mqttd-ctl plugins reload {name}`: the running broker takes the new code,
or tells what is wrong with it and keeps the old.

Do not add `mqttd_plugins/__init__.py`: the one of mqttd is the only one.
"""

GITIGNORE: Final = "__pycache__/\n*.egg-info/\nbuild/\ndist/\ndropin.cache\n"


def write_project(name: str, directory: str) -> list[str]:
    """Write the project of plugin `name` to `directory`; returns the files, in order.

    Raises ValueError if that is no name, FileExistsError if the directory has files already,
    OSError.
    """
    if not _NAME.fullmatch(name) or name == "template" or iskeyword(name):
        raise ValueError(
            f"{name!r}: expected a name of a-z, 0-9 and _, first a letter, not template nor a"
            " word of Python"
        )
    given = {"name": name, "dashed": name.replace("_", "-"), "version": __version__}
    package = f"mqttd_plugins/{name}"
    project = {
        "README.md": README.format(**given),
        "setup.cfg": SETUP_CFG.format(**given),
        "pyproject.toml": PYPROJECT,
        ".gitignore": GITIGNORE,
        f"etc/plugins/{name}.conf": _example("template.conf", name),
        f"{package}/__init__.py": _example("__init__.py", name),
        f"{package}/plugin.py": _example("plugin.py", name),
        f"tests/test_{name}.py": _example("test_template.py", name),
    }
    there = os.listdir(directory) if os.path.isdir(directory) else ()
    if others := sorted(one for one in there if not one.startswith(".")):
        own = os.path.join(directory, f"mqttd-{given['dashed']}")
        raise FileExistsError(
            17, f"has {others[0]} in it, but a project has a directory of its own, such as {own};"
            " nothing was written", directory
        )  # fmt: skip
    for file in project:
        path = os.path.join(directory, file)
        if os.path.lexists(path):
            raise FileExistsError(17, "is there already; nothing was written", path)
    written = []
    for file, text in project.items():
        path = os.path.join(directory, file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "x", encoding="utf-8") as output:
            output.write(text)
        written.append(path)
    return written


def _example(file: str, name: str) -> str:
    """A file of the example, with the plugin's name in place of its own."""
    text = files("mqttd_plugins.template").joinpath(file).read_text("utf-8")
    title = "".join(part.capitalize() for part in name.split("_"))
    return text.replace("template", name).replace("Template", title)
