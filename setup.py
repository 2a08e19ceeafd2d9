"""Compiles the hot path with mypyc; everything else about the package is in setup.cfg.

The modules in ``HOT`` are plain Python that also compiles. All of them become one
extension group (calls and attributes between them are C), so it is all or nothing:

    a compiler and mypy    .so files beside the .py files, and Python prefers them
    anything missing       one warning; the .py files run, slower, and nothing else differs

``MQTTD_PURE=1`` builds without them. ``MQTTD_REQUIRE_COMPILED=1`` fails instead of falling back.
``CFLAGS`` adds to the flags that Python was built with: see `python_flags`.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import MutableMapping
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HOT = [
    "mqttd/codec/bodies.py",
    "mqttd/codec/frame.py",
    "mqttd/codec/packet_types.py",
    "mqttd/codec/packets.py",
    "mqttd/codec/parser.py",
    "mqttd/codec/properties.py",
    "mqttd/codec/reasons.py",
    "mqttd/codec/scan.py",
    "mqttd/codec/spans.py",
    "mqttd/codec/serializer.py",
    "mqttd/codec/sniff.py",
    "mqttd/codec/topic.py",
    "mqttd/session/ground/account.py",
    "mqttd/session/channel/acknowledging.py",
    "mqttd/session/routes/ahead.py",
    "mqttd/session/ground/aliases.py",
    "mqttd/session/publish/carrying.py",
    "mqttd/session/routes/changes.py",
    "mqttd/session/channel/channel.py",
    "mqttd/session/charged.py",
    "mqttd/session/ground/connection.py",
    "mqttd/session/filters.py",
    "mqttd/session/publish/forward.py",
    "mqttd/session/channel/framing.py",
    "mqttd/session/channel/leaving.py",
    "mqttd/session/publish/general.py",
    "mqttd/session/gathering.py",
    "mqttd/session/ground/guid.py",
    "mqttd/session/publish/inbound.py",
    "mqttd/session/publish/incoming.py",
    "mqttd/session/journal.py",
    "mqttd/session/kept.py",
    "mqttd/session/kinds.py",
    "mqttd/session/publish/lending.py",
    "mqttd/session/channel/limits.py",
    "mqttd/session/channel/listener.py",
    "mqttd/session/ground/message.py",
    "mqttd/session/ground/metrics.py",
    "mqttd/session/publish/missing.py",
    "mqttd/session/ground/mount.py",
    "mqttd/session/mqueue.py",
    "mqttd/session/publish/naming.py",
    "mqttd/session/publish/notes.py",
    "mqttd/session/ground/output.py",
    "mqttd/session/pending.py",
    "mqttd/session/promise.py",
    "mqttd/session/publish/publisher.py",
    "mqttd/session/routes/receiver.py",
    "mqttd/session/publish/recorded.py",
    "mqttd/session/replay.py",
    "mqttd/session/replays.py",
    "mqttd/session/routes/route.py",
    "mqttd/session/ground/runs.py",
    "mqttd/session/sending.py",
    "mqttd/session/session.py",
    "mqttd/session/ground/refusal.py",
    "mqttd/session/ground/settings.py",
    "mqttd/session/routes/sights.py",
    "mqttd/session/publish/spans.py",
    "mqttd/session/state.py",
    "mqttd/session/willed.py",
    "mqttd/session/routes/stems.py",
    "mqttd/session/routes/topics.py",
    "mqttd/session/ground/unfinished.py",
    "mqttd/session/ground/wheel.py",
    "mqttd/broker/routing/abroad.py",
    "mqttd/broker/broker.py",
    "mqttd/broker/sessions/admission.py",
    "mqttd/broker/sessions/claims.py",
    "mqttd/broker/connack.py",
    "mqttd/broker/connecting.py",
    "mqttd/broker/hooks/deliveries.py",
    "mqttd/broker/sessions/directory.py",
    "mqttd/broker/sessions/endings.py",
    "mqttd/broker/publish/asked.py",
    "mqttd/broker/publish/fans.py",
    "mqttd/broker/publish/gate.py",
    "mqttd/broker/routing/gears.py",
    "mqttd/broker/ground/ground.py",
    "mqttd/broker/sessions/handing.py",
    "mqttd/broker/hooks/holders.py",
    "mqttd/broker/publish/local.py",
    "mqttd/broker/ground/losses.py",
    "mqttd/broker/sessions/login.py",
    "mqttd/broker/memory/memory.py",
    "mqttd/broker/routing/mounts.py",
    "mqttd/broker/sessions/partings.py",
    "mqttd/broker/publish/publishing.py",
    "mqttd/broker/publish/pubsub.py",
    "mqttd/broker/sessions/quota.py",
    "mqttd/broker/sessions/records.py",
    "mqttd/broker/sessions/registry.py",
    "mqttd/broker/ground/reports.py",
    "mqttd/broker/retained/retained.py",
    "mqttd/broker/retained/tree.py",
    "mqttd/broker/retained/retainer.py",
    "mqttd/broker/rights/rights.py",
    "mqttd/broker/ground/room.py",
    "mqttd/broker/routing/router.py",
    "mqttd/broker/routing/shared.py",
    "mqttd/broker/memory/shedding.py",
    "mqttd/broker/publish/on_behalf.py",
    "mqttd/broker/publish/subscribing.py",
    "mqttd/broker/hooks/taps.py",
    "mqttd/broker/routing/topic_rates.py",
    "mqttd/broker/routing/trie.py",
    "mqttd/broker/ground/turns.py",
    "mqttd/broker/routing/walks.py",
    "mqttd/broker/publish/wills.py",
    "mqttd/storage/blocks.py",
    "mqttd/storage/durability.py",
    "mqttd/storage/entries.py",
    "mqttd/storage/fetching.py",
    "mqttd/storage/journal.py",
    "mqttd/storage/ledger.py",
    "mqttd/storage/patience.py",
    "mqttd/storage/reading.py",
    "mqttd/storage/recovery.py",
    "mqttd/storage/releasing.py",
    "mqttd/storage/restore.py",
    "mqttd/storage/shares.py",
    "mqttd/storage/sparing.py",
    "mqttd/pipeline/log/batch.py",
    "mqttd/pipeline/log/columns.py",
    "mqttd/pipeline/log/parts.py",
    "mqttd/pipeline/log/payloads.py",
    "mqttd/access/acl/asked.py",
    "mqttd/access/acl/classes.py",
    "mqttd/access/acl_entry.py",
    "mqttd/access/acl/rules.py",
    "mqttd/access/acl/topics.py",
    "mqttd/access/acl/who.py",
    "mqttd/access/auth/authentication.py",
    "mqttd/access/auth/doorkeeper.py",
    "mqttd/access/auth/failures.py",
    "mqttd/access/auth/known.py",
    "mqttd/access/authorization.py",
    "mqttd/access/remembered.py",
    "mqttd/net/fair.py",
    "mqttd/transports/accepting.py",
    "mqttd/transports/costly.py",
    "mqttd/transports/engine.py",
    "mqttd/transports/frames.py",
    "mqttd/transports/layered_edge.py",
    "mqttd/transports/layered_stream.py",
    "mqttd/transports/layers.py",
    "mqttd/transports/lobby.py",
    "mqttd/transports/ports.py",
    "mqttd/transports/proxy.py",
    "mqttd/transports/reading.py",
    "mqttd/transports/records.py",
    "mqttd/transports/stream.py",
    "mqttd/cluster/sessions/catcher.py",
    "mqttd/cluster/etcd/filling.py",
    "mqttd/cluster/links/nodes.py",
    "mqttd/cluster/sessions/parts.py",
    "mqttd/mesh/arriving.py",
    "mqttd/mesh/changes.py",
    "mqttd/mesh/ferry.py",
    "mqttd/mesh/flight.py",
    "mqttd/mesh/frames.py",
    "mqttd/mesh/handled.py",
    "mqttd/mesh/landing.py",
    "mqttd/mesh/lane.py",
    "mqttd/mesh/link.py",
    "mqttd/mesh/mesh.py",
    "mqttd/mesh/neighbour.py",
    "mqttd/mesh/peer.py",
    "mqttd/mesh/pouring.py",
    "mqttd/mesh/retained.py",
    "mqttd/mesh/telling.py",
    "mqttd/workers/mesh.py",
    "mqttd/workers/relay.py",
]

#: All but the modules' entry points stays inside: calls then need no jump through a table, and
#: small functions are inlined (0.80 to 0.97 of the CPU per message without it).
HIDDEN = ["-fvisibility=hidden"]

#: Of -Wall, which Python's own flags bring: gcc reads each line of the group's one C file again for
#: that warning, and took 343 s of 528 for it (-O1), 6 s without.
QUICK = ["-Wno-misleading-indentation"]

PURE = os.environ.get("MQTTD_PURE") == "1"
REQUIRE = os.environ.get("MQTTD_REQUIRE_COMPILED") == "1"


def python_flags(environ: MutableMapping[str, str]) -> None:
    """Have ``CFLAGS`` begin with Python's own C flags.

    setuptools lets ``CFLAGS`` replace them. Without -DNDEBUG the asserts of mypyc's code stay in,
    which cost a tenth, and without -fwrapv its integers are not what Python's headers count on.
    What the caller gives comes last and wins.
    """
    own = sysconfig.get_config_var("CFLAGS") or ""
    given = environ.get("CFLAGS")
    if given is not None and not given.startswith(own):
        environ["CFLAGS"] = f"{own} {given}"


def extensions() -> list[Extension]:
    """The mypyc group, or nothing where it was not wanted or cannot be made."""
    if PURE:
        return []
    try:
        from mypyc.build import mypycify

        # No config file: its plugins and overrides are for the whole tree, and are
        # not installed where pip builds. The group name keeps file names the same.
        made = mypycify(
            ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports", *HOT],
            opt_level="3",
            debug_level="0",
            group_name="mqttd",
        )
        if sys.platform != "win32":
            for extension in made:
                extension.extra_compile_args = [*extension.extra_compile_args, *HIDDEN, *QUICK]
        return made
    except (Exception, SystemExit) as error:
        if REQUIRE:
            raise
        warn(error)
        return []


class BuildAllOrNothing(build_ext):
    """Falls back to the sources if any part of the group does not compile.

    ``Extension.optional`` would decide for each file, and leave half a group behind,
    which cannot be imported.
    """

    def run(self) -> None:
        if self.inplace or self.editable_mode:
            for stale in Path("mqttd").rglob("*.so"):
                stale.unlink()  # of a module that may have left the group since
        try:
            super().run()
        except Exception as error:
            if REQUIRE:
                raise
            warn(error)
            for extension in self.extensions:
                built = Path(self.build_lib, *extension.name.split("."))
                for path in built.parent.glob(built.name + ".*.so"):
                    path.unlink()
            self.extensions = []


def warn(error: BaseException) -> None:
    print(f"mqttd: hot path not compiled, the broker will be slower: {error}", file=sys.stderr)


python_flags(os.environ)
setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildAllOrNothing},
)
