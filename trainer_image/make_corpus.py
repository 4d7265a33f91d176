"""Write `corpus.txt`, the text that the reference trainer learns: little tales from a seeded grammar.

Nobody's text is copied, and the same seed always gives the same bytes:

    python trainer_image/make_corpus.py            # rewrite corpus.txt
    python trainer_image/make_corpus.py --check    # fail if corpus.txt is not what this script writes
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).with_name("corpus.txt")
SEED: Final = 20_260_504
CORPUS_BYTES: Final = 120_000

GRAMMAR: Final[dict[str, tuple[str, ...]]] = {
    "tale": (
        "<opening> <deed> <deed> <trouble> <deed> <help> <ending>",
        "<opening> <deed> <trouble> <talk> <help> <deed> <ending>",
        "<opening> <talk> <deed> <deed> <trouble> <talk> <help> <ending>",
    ),
    "opening": (
        "Once, in <place>, there lived <who>.",
        "Long before the <season> rains, <who> came to <place>.",
        "Nobody in <place> had ever seen <who>, and yet one <time> there was a knock.",
    ),
    "deed": (
        "Every <time> <hero> <work> and <work>.",
        "<hero> <work>, for <reason>.",
        "Then <hero> <work> until the <time> was over.",
        "With <thing> in one hand and <thing> in the other, <hero> <work>.",
    ),
    "trouble": (
        "But one <time> the <force> came and took <thing>.",
        "Without a word of warning the <force> was there, and <thing> was gone.",
        "Two minutes before the <time>, a bell rang: the <force> was coming.",
    ),
    "talk": (
        '"Where is <thing>?" asked <hero>. "It is kept in <place>," said the <beast>.',
        '"How far did we come?" asked the <beast>. "To page <number>," said <hero>, "and from there we go on."',
        '"Do not begin again," said the <beast>. "Begin where you stopped."',
    ),
    "help": (
        "A <beast> had written down every step, and so nothing was lost.",
        "Before the sun had moved, another <beast> stood in the same place and did the same work.",
        "The <beast> opened the old book at page <number>, and the work went on from that line.",
    ),
    "ending": (
        "And if the <force> has not come back, <hero> still <work> there.",
        "So the work was done, and it was the same work as if nothing had happened.",
        "That is why in <place> people write things down twice.",
    ),
    "who": ("a <trade> with <number> <beast>s", "a <mood> <trade>", "an old <beast> and a young <trade>"),
    "hero": ("the <trade>", "the <mood> <trade>", "the <beast>", "she", "he"),
    "work": (
        "counted the <goods>",
        "mended <thing>",
        "carried <number> baskets of <goods> up the hill",
        "learned the names of the <goods>",
        "swept the floor of the <building>",
        "sang to the <beast>",
        "turned the great wheel",
    ),
    "reason": ("the <season> would be long", "the <force> never slept", "someone had to", "the <goods> were heavy"),
    "place": (
        "a <building> by the <water>",
        "the <building> behind the hills",
        "a valley of <goods>",
        "the town of the <trade>s",
    ),
    "thing": ("the <mood> lamp", "a book of <number> pages", "the key of the <building>", "a jar of <goods>", "a map"),
    "trade": ("miller", "weaver", "baker", "sailor", "clockmaker", "shepherd", "gardener", "smith"),
    "beast": ("heron", "goat", "mule", "owl", "badger", "hare", "crow", "otter"),
    "goods": ("apples", "stones", "letters", "candles", "barley", "feathers", "nails", "threads"),
    "building": ("mill", "lighthouse", "barn", "tower", "library", "forge"),
    "water": ("river", "lake", "sea", "spring", "marsh"),
    "force": ("wind", "flood", "frost", "storm", "fog", "tide"),
    "season": ("autumn", "winter", "spring", "summer"),
    "time": ("morning", "evening", "night", "noon"),
    "mood": ("patient", "silver", "quiet", "stubborn", "cheerful", "narrow", "golden"),
    "number": ("three", "seven", "nine", "twelve", "forty", "a hundred"),
}
_SYMBOL = re.compile(r"<(\w+)>")


def expand(symbol: str, chance: random.Random) -> str:
    """One random text of `symbol`."""
    return _SYMBOL.sub(lambda match: expand(match[1], chance), chance.choice(GRAMMAR[symbol]))


def corpus() -> str:
    """The whole text: tales until CORPUS_BYTES are reached."""
    chance = random.Random(SEED)
    tales: list[str] = []
    size = 0
    while size < CORPUS_BYTES:
        tales.append(". ".join(_capital(part) for part in expand("tale", chance).split(". ")) + "\n\n")
        size += len(tales[-1])
    return "".join(tales)


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def main() -> int:
    """Write the corpus, or check it."""
    parser = argparse.ArgumentParser(description="Write the reference trainer's text.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if not parser.parse_args().check:
        CORPUS.write_text(corpus())
        return 0
    if CORPUS.read_text() == corpus():
        return 0
    print(f"{CORPUS.name} is not what {Path(__file__).name} writes: run it without --check", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
