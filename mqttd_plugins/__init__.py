"""Where mqttd finds its plugins: this folder, and every ``mqttd_plugins`` folder on ``sys.path``.

A package of your own adds ``mqttd_plugins/acme_thing.py`` and brings no ``__init__.py``:
this file is the only one, and a second would hide either it or the plugins beside it.
"""

from twisted.plugin import pluginPackagePaths

__path__.extend(pluginPackagePaths(__name__))
__all__: list[str] = []
