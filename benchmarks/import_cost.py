"""What `import spotproof` costs beside a bare interpreter and beside boto3, which it does not load.

Every handler, every agent and every command pays this before it does anything. CPU seconds since the start of the
process, sample by sample in turn, so that a busy machine disturbs all contenders alike; only the ratios are quoted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import Final

SAMPLES: Final = 9
CONTENDERS: Final = {
    "bare interpreter": "pass",
    "spotproof": "import spotproof",
    "spotproof.contract.events": "import spotproof.contract.events",
    "boto3": "import boto3",
}


def cpu_s(statement: str) -> float:
    """CPU seconds of a new process that runs `statement`, from its start."""
    script = f"{statement}\nimport time; print(time.process_time())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Measure in turn and print one line per contender."""
    samples: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(SAMPLES):
        for name, statement in CONTENDERS.items():
            samples[name].append(cpu_s(statement))
    bare = statistics.median(samples["bare interpreter"])
    for name, seconds in samples.items():
        middle = statistics.median(seconds)
        best_ms, middle_ms = min(seconds) * 1000, middle * 1000
        print(f"{name:28} {best_ms:6.1f} ms best {middle_ms:6.1f} ms median  x{middle / bare:.1f} of bare")


if __name__ == "__main__":
    main()
