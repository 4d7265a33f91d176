"""The flush order: in HEAD, in the request file that the SSM document drops, and in the document itself.

A request file is named `flush-<order id>`; its one line is `<order id>,<kind>,<deadline>,<leavers>` where the deadline
is Unix seconds and leavers is the slot bitmap in hex ('0' = nobody leaves: an extra checkpoint for everybody).
"""

from __future__ import annotations

import re
from typing import Final

from spotproof.contract.frozen import dataclass
from spotproof.contract.limits import EXECUTION_LIMIT_S
from spotproof.contract.states import NoticeKind
from spotproof.errors import ContractError

RUNTIME_DIR: Final = "/run/spotproof"
REQUESTS: Final = "requests"
REQUEST_PREFIX: Final = "flush-"
REQUEST_PATTERN: Final = r"^[a-z0-9-]{1,64},[a-z-]{1,16},[0-9]{1,12},[0-9a-f]{1,250}$"
DOCUMENT_PARAMETER: Final = "Request"
DOCUMENT_STEP: Final = "flush"
_REQUEST = re.compile(REQUEST_PATTERN)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushOrder:
    """Who flushes until when. `leavers` are slot numbers; a node that is not among them only saves.

    `generation` was the newest membership when they were named: whoever joined after it is not meant. 0: unknown.
    """

    order: str
    kind: NoticeKind
    deadline_at: int
    leavers: frozenset[int]
    generation: int = 0


def bitmap_of(slots: frozenset[int]) -> str:
    """Slot numbers as a hex bitmap; '0' for none."""
    bits = 0
    for number in slots:
        bits |= 1 << number
    return f"{bits:x}"


def slots_of(bitmap: str) -> frozenset[int]:
    """The slot numbers in a hex bitmap."""
    bits = int(bitmap, 16)
    return frozenset(number for number in range(bits.bit_length()) if bits >> number & 1)


def request_line(order: FlushOrder) -> str:
    """The order as one line, safe for a shell. Raises ContractError for an id, deadline or slot that is none."""
    line = f"{order.order},{order.kind.value},{order.deadline_at},{bitmap_of(order.leavers)}"
    if not _REQUEST.fullmatch(line):
        raise ContractError(f"{line[:80]!r} cannot be a flush request")
    return line


def parse_request(line: str) -> FlushOrder:
    """The order in `line`. Raises ContractError if it is not one."""
    text = line.strip()
    if not _REQUEST.fullmatch(text):
        raise ContractError(f"{text[:80]!r} is not a flush request")
    order, kind, deadline, leavers = text.split(",")
    try:
        notice = NoticeKind(kind)
    except ValueError as error:
        raise ContractError(f"{kind!r} is not a kind of notice") from error
    return FlushOrder(order=order, kind=notice, deadline_at=int(deadline), leavers=slots_of(leavers))


def request_script() -> list[str]:
    """The shell lines of the SSM document: correct under dash, and the request is never pasted into the script.

    SSM agents older than 3.3.2746 leave the variable unset; then the script fails loudly and the node still hears the
    order from HEAD and the notice from IMDS.
    """
    return [
        "set -eu",
        f': "${{SSM_{DOCUMENT_PARAMETER}:?this SSM agent is too old for ENV_VAR parameters}}"',
        f'dir="${{SPOTPROOF_RUNTIME_DIR:-{RUNTIME_DIR}}}/{REQUESTS}"',
        "umask 077",
        'mkdir -p "$dir"',
        f'order="${{SSM_{DOCUMENT_PARAMETER}%%,*}}"',
        f'printf "%s\\n" "$SSM_{DOCUMENT_PARAMETER}" > "$dir/.new-$order-$$"',
        f'mv "$dir/.new-$order-$$" "$dir/{REQUEST_PREFIX}$order"',
    ]


def document() -> dict[str, object]:
    """Content of the SSM document that the stack deploys."""
    return {
        "schemaVersion": "2.2",
        "description": "Ask the spotproof agent to flush",
        "parameters": {
            DOCUMENT_PARAMETER: {
                "type": "String",
                "description": "order,kind,deadline,leavers",
                "allowedPattern": REQUEST_PATTERN,
                "interpolationType": "ENV_VAR",
            }
        },
        "mainSteps": [
            {
                "action": "aws:runShellScript",
                "name": DOCUMENT_STEP,
                "precondition": {"StringEquals": ["platformType", "Linux"]},
                "inputs": {"timeoutSeconds": str(EXECUTION_LIMIT_S), "runCommand": request_script()},
            }
        ],
    }
