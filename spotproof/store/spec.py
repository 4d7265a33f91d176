"""SPEC: what submit wrote. Its attributes are the run spec's own keys; user data reads `image` from it by name."""

from __future__ import annotations

from spotproof.contract import keys, runspec
from spotproof.contract.runspec import RunSpec
from spotproof.errors import Lost
from spotproof.store.table import Absent, Item, Put, Table

__all__ = ["Specs", "spec_of"]


class Specs:
    """The run specs. A spec never changes once it is written."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def create(self, spec: RunSpec) -> None:
        """Write the spec; the equal spec already there is success (a submit that is tried again).

        Raises Lost if the run has another spec: choose another run id.
        """
        document = runspec.to_document(spec)
        try:
            self._table.write(Put(key=keys.spec(spec.run), item=document, when=Absent("pk")))
        except Lost as lost:
            if lost.current is None or spec_of(lost.current) != spec:
                raise

    def read(self, run: str) -> RunSpec | None:
        """Return the spec, or None: a run of hand-tagged instances only, nothing is launched for it."""
        item = self._table.get(keys.spec(run))
        return None if item is None else spec_of(item)


def spec_of(item: Item) -> RunSpec:
    """Return the spec that an item of the table holds."""
    return runspec.parse({name: value for name, value in item.items() if name not in (keys.PK, keys.SK)})
