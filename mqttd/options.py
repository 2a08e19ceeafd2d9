"""The command line of `twistd mqttd`, and what it tells before anything starts.

Promise: a mistake in the configuration, or in a file that a start reads, is told in a line that
says where, and stops the start; `--check-config` reads all of them and starts nothing.
"""

from __future__ import annotations

import os
import platform
import sys

from twisted.python import usage

from mqttd import __version__, compiled
from mqttd.access.by_listener import configs_by_listener
from mqttd.access.chain import AccessControl
from mqttd.admin.tcp import AdminTcpError, check_settings
from mqttd.config.load import ConfigError, load
from mqttd.config.schema import Config, SslListener
from mqttd.plugins.handle import Host
from mqttd.plugins.plugins import Plugins
from mqttd.transports.tls import Tls, TlsError

__all__ = ["Options", "StartError", "check", "check_files", "version_text", "why"]


class StartError(Exception):
    """The broker cannot start; the message says why and what to do."""


def why(error: Exception) -> str:
    """What an operator reads of it."""
    if isinstance(error, ConfigError):
        return f"the configuration has mistakes:\n{error}"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def check(config: Config) -> None:
    """Read the files that a start reads, and start nothing; raises what is wrong with one."""
    check_files(config)
    Plugins(config, Host(None, None)).check()


def check_files(config: Config) -> AccessControl:
    """Read users, rules, certificates and tokens, in any thread; returns the access control.

    Raises what is wrong with one.
    """
    access = AccessControl(config)
    for own in configs_by_listener(config).values():
        AccessControl(own)
    for kind, names in config.listener.items():
        for name, settings in names.items():
            if isinstance(settings, SslListener):
                try:
                    Tls(settings)
                except TlsError as error:
                    raise StartError(f"listener.{kind}.{name}: {error}") from None
    try:
        check_settings(config.admin.tcp)
    except AdminTcpError as error:
        raise StartError(str(error)) from None
    return access


def version_text() -> str:
    """What `--version` prints."""
    how = "compiled" if compiled() else "pure Python, slower"
    return f"mqttd {__version__} ({how}), Python {platform.python_version()}"


class Options(usage.Options):
    """Command line of `twistd mqttd`."""

    optParameters = [["config", "c", None, "Configuration file (etc/mqttd.conf)."]]
    optFlags = [["check-config", None, "Check the configuration and stop."]]

    def opt_version(self) -> None:
        """Print the version and whether the hot path is compiled."""
        print(version_text())
        sys.exit(0)

    def postOptions(self) -> None:
        """Read the configuration, so that mistakes are told before anything starts."""
        try:
            self.configuration = load(self["config"], os.environ)
            if self["check-config"]:
                check(self.configuration)
        except Exception as error:
            # A UsageError would print the options first: the mistake is in a file.
            raise SystemExit(f"mqttd cannot start: {why(error)}") from None
        if self["check-config"]:
            print(f"{self['config'] or 'defaults'}: ok")
            sys.exit(0)
