"""spotproof: training on EC2 Spot that goes on from exactly the step where it stopped.

Names are loaded on first use (PEP 562): `import spotproof` costs milliseconds and pulls in neither torch nor boto3,
because the agent, the CLI and the handlers import this package too.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spotproof.run import Run

__version__ = "0.1.0"

__all__ = ["Run", "__version__"]


def __getattr__(name: str) -> object:
    """Load `Run` when it is first asked for.

    Raises AttributeError for any other name, as a module without `__getattr__` would.
    """
    if name == "Run":
        # By name: an import statement here would tie every importer of this package to torch in the import graph.
        return import_module("spotproof.run").Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the lazy names too, so that completion finds them."""
    return sorted([*globals(), "Run"])
