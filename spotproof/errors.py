"""Every exception spotproof raises on purpose.

SpotproofError                    anything below; `next_step` says what a person should do
|- ContractError                  what came from outside does not have the agreed form
|  |- MalformedEvent              an event of a known kind that lacks what it must have
|  |- BadRunSpec                  a run spec that cannot be filled
|  |- BadSettings                 an environment or settings file that contradicts itself
|  |- BadManifest                 a manifest, part or pointer that does not parse
|  `- ProtocolError               agent and trainer do not understand each other
|- StoreError                     the table or the bucket
|  |- Lost                        a conditional write found another state: somebody else was first
|  |- Damaged                     bytes do not have the digest that was promised
|  |- Missing                     an object or item that must exist does not
|  |- Unavailable                 the service did not answer within the time this call may take
|  `- Denied                      credentials or permissions
|- CheckpointError
|  |- UnstorableState             a value that cannot be stored or loaded safely, refused at start
|  |- MismatchedState             a checkpoint that does not fit the tracked objects
|  |- ArenaRefused                the arenas do not fit the memory that is allowed
|  |- DiskFull                    the local copy does not fit
|  |- Superseded                  a newer generation has been sealed: this writer is not one any more
|  `- NoLoadableCheckpoint        the run has checkpoints, none of them is whole
|- NodeError                      agent, trainer or metadata service
|  |- NoAgent                     no agent answers on the socket
|  `- MetadataUnavailable         IMDS does not give a token or an answer
`- ControlError                   a control-plane effect that failed for good
   `- LaunchBlocked               no retry helps before a person changes something
"""

from __future__ import annotations

__all__ = [
    "ArenaRefused",
    "BadManifest",
    "BadRunSpec",
    "BadSettings",
    "CheckpointError",
    "ContractError",
    "ControlError",
    "Damaged",
    "Denied",
    "DiskFull",
    "LaunchBlocked",
    "Lost",
    "MalformedEvent",
    "MetadataUnavailable",
    "MismatchedState",
    "Missing",
    "NoAgent",
    "NoLoadableCheckpoint",
    "NodeError",
    "ProtocolError",
    "SpotproofError",
    "StoreError",
    "Superseded",
    "Unavailable",
    "UnstorableState",
]


class SpotproofError(Exception):
    """Base of all: the message says what failed, on what and why; `next_step` what to do about it."""

    def __init__(self, what: str, *, next_step: str = "") -> None:
        super().__init__(what if not next_step else f"{what}. Next: {next_step}")
        self.what = what
        self.next_step = next_step


class ContractError(SpotproofError):
    """What came from outside does not have the agreed form."""


class MalformedEvent(ContractError):
    """An event of a known kind that lacks what it must have; carries the event id."""

    def __init__(self, what: str, *, event_id: str) -> None:
        super().__init__(f"event {event_id or '(no id)'}: {what}", next_step="look at it in the dead-letter queue")
        self.event_id = event_id


class BadRunSpec(ContractError):
    """A run spec that cannot be filled."""


class BadSettings(ContractError):
    """An environment or a settings file that is incomplete or contradicts itself."""


class BadManifest(ContractError):
    """A manifest, part, layout or pointer that does not parse."""


class ProtocolError(ContractError):
    """Agent and trainer do not understand each other."""


class StoreError(SpotproofError):
    """The table or the bucket."""


class Lost(StoreError):
    """A conditional write found another state. `current` is the item that was there (None: no item)."""

    def __init__(self, what: str, *, current: dict[str, object] | None = None, op: int = 0) -> None:
        super().__init__(what)
        self.current = current
        self.op = op


class Damaged(StoreError):
    """Bytes do not have the digest or the size that was promised."""


class Missing(StoreError):
    """An object or item that must exist does not."""


class Unavailable(StoreError):
    """The service did not answer, or throttled, for the whole time this call was allowed to take."""


class Denied(StoreError):
    """Credentials or permissions."""


class CheckpointError(SpotproofError):
    """Saving or restoring a checkpoint."""


class UnstorableState(CheckpointError):
    """A value in the tracked state cannot be stored or loaded safely; `path` names it."""

    def __init__(self, what: str, *, path: str, next_step: str = "") -> None:
        super().__init__(f"{path}: {what}", next_step=next_step)
        self.path = path


class MismatchedState(CheckpointError):
    """A checkpoint that does not fit the tracked objects: missing, extra, shape or dtype."""


class ArenaRefused(CheckpointError):
    """The arenas do not fit into the memory that this node allows."""


class DiskFull(CheckpointError):
    """The local copy does not fit; the previous copy is untouched."""


class Superseded(CheckpointError):
    """A newer generation has been sealed: this writer must stop."""


class NoLoadableCheckpoint(CheckpointError):
    """The run has checkpoints and none of them is whole; starting from zero would lose work silently."""


class NodeError(SpotproofError):
    """Agent, trainer or metadata service."""


class NoAgent(NodeError):
    """No agent answers on the socket."""


class MetadataUnavailable(NodeError):
    """IMDS gives no token or no answer."""


class ControlError(SpotproofError):
    """A control-plane effect that failed for good."""


class LaunchBlocked(ControlError):
    """No retry helps before a person changes something."""
