"""Who this instance is, for an agent that a person starts by hand: from the instance's own metadata and tags.

User data writes all of it into the agent's environment. On an instance of a person's own only the stack's table, bucket
and region are given; the rest is asked here, and the place in the run comes from the INSTANCE item as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from spotproof.contract import tags
from spotproof.contract.settings import variable
from spotproof.errors import BadSettings, MetadataUnavailable

_GIVEN: Final = ("table", "bucket")  # without these there is no stack to speak of, and nothing is asked
_PATHS: Final = {
    "instance": "instance-id",
    "region": "placement/region",
    "run": f"tags/instance/{tags.RUN}",
    "stack": f"tags/instance/{tags.STACK}",
    "launch": f"tags/instance/{tags.LAUNCH}",
}
_OPT_IN: Final = ("run", "stack")


class Asks(Protocol):
    """The part of `agent.imds.Imds` that is needed here."""

    def text(self, path: str) -> str | None:
        """Plain text under /latest/meta-data/, or None. Raises MetadataUnavailable."""


def completed(environ: Mapping[str, str], imds: Asks) -> dict[str, str]:
    """`environ` with what is missing in it and the instance can say of itself; what is set stays.

    A service that does not answer leaves it as it is: whoever reads the settings names what is missing. Raises
    BadSettings where the instance answers and its opt-in tags cannot be read: nobody has tagged it, or its metadata
    does not show tags.
    """
    known = dict(environ)
    if not all(known.get(variable(name)) for name in _GIVEN):
        return known
    try:
        for name, path in _PATHS.items():
            if not known.get(variable(name)):
                known[variable(name)] = imds.text(path) or ""
    except MetadataUnavailable:
        return known
    unread = [name for name in _OPT_IN if not known[variable(name)]]
    if unread:
        keys = " and ".join(_PATHS[name].rpartition("/")[2] for name in unread)
        raise BadSettings(
            f"instance {known[variable('instance')]} has no readable tag {keys}",
            next_step="tag it for a run, and allow tags in its metadata (InstanceMetadataTags=enabled), or set "
            f"{' and '.join(variable(name) for name in unread)}",
        )
    return known
