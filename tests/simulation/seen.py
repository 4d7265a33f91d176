"""Histories that have caught a mutation before: the suite plays them first, and looks on only if they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

SEEN: Final[Mapping[str, Sequence[int]]] = {
    "short way without conditions": (868,),
    "short way overwrites launches": (868,),
    "look again dropped": (183,),
    "join barrier dropped": (20,),
    "prewarmed node does not wait": (65,),
    "token not stored": (207,),
    "launch record overwritten": (14,),
    "unfinished launch not replayed": (9,),
    "orphans kept": (4,),
    "silent deaths unseen": (39,),
    "drained nodes unseen": (323,),
    "foreign instance ended": (7,),
    "generation unchecked": (742,),
    "leavers named again": (235,),
    "recoveries uncounted": (2550,),
    "reach not taken back": (244,),
    "successor of a move not awaited": (208,),
    "prewarmed node kept": (65,),
    "date of a move forgotten": (286,),
    "storm breaker off": (29388,),
    "hand-tagged node entered twice": (1335,),
    "untagging unseen": (77,),
}
