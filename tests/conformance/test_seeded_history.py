"""One random history played on the local table and on an emulator: every answer and the final state are the same."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from spotproof.contract.keys import Key
from spotproof.errors import Lost, StoreError
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.table import (
    Absent,
    AllOf,
    AnyOf,
    Check,
    Condition,
    Contains,
    Delete,
    Eq,
    Exists,
    Ge,
    Gt,
    Lacks,
    Le,
    Lt,
    Ne,
    Op,
    Put,
    Table,
    Update,
    Value,
    Write,
)
from tests.conformance.conftest import EMULATED_TABLES, MOTO
from tests.fakes.dict_table import DictTable

STEPS = 400
NUMBERS, TEXTS, MEMBERS = ("n", "m"), ("s", "t"), ("w", "x")
PARTITIONS, SORT_KEYS = 2, ("A", "B", "B#1", "B#2", "C")

COMPARISONS: tuple[Callable[[str, Value], Condition], ...] = (Lt, Le, Gt, Ge, Eq, Ne)
PRESENCE: tuple[Callable[[str], Condition], ...] = (Absent, Exists)
MEMBERSHIP: tuple[Callable[[str, str], Condition], ...] = (Contains, Lacks)
JOINS: tuple[Callable[..., Condition], ...] = (AllOf, AnyOf)


class Player:
    """Makes operations that a typed caller could make: an attribute's name says what it holds."""

    def __init__(self, seed: int, run: str) -> None:
        self.chance = random.Random(seed)
        self.run = run

    def key(self) -> Key:
        return Key(pk=f"RUN#{self.run}#{self.chance.randrange(PARTITIONS)}", sk=self.chance.choice(SORT_KEYS))

    def number(self) -> int | float:
        return self.chance.choice([self.chance.randrange(-3, 4), self.chance.randrange(8) / 4])

    def text(self) -> str:
        return self.chance.choice(["", "a", "ab", "b", "é"])

    def members(self) -> frozenset[str]:
        return frozenset(self.chance.sample(["0", "1", "2", "3"], self.chance.randrange(1, 4)))

    def attributes(self) -> dict[str, Value]:
        made: dict[str, Value] = {}
        for names, maker in ((NUMBERS, self.number), (TEXTS, self.text), (MEMBERS, self.members)):
            for name in names:
                if self.chance.random() < 0.5:
                    made[name] = maker()
        return made

    def condition(self, depth: int = 0) -> Condition:
        kind = self.chance.randrange(6 if depth == 0 else 4)
        number, text = self.chance.choice(NUMBERS), self.chance.choice(TEXTS)
        match kind:
            case 0:
                return self.chance.choice(COMPARISONS)(number, self.number())
            case 1:
                return self.chance.choice(COMPARISONS)(text, self.text())
            case 2:
                return self.chance.choice(PRESENCE)(self.chance.choice((*NUMBERS, *TEXTS, *MEMBERS, "pk")))
            case 3:
                return self.chance.choice(MEMBERSHIP)(self.chance.choice(MEMBERS), self.chance.choice("0123"))
            case _:
                parts = [self.condition(depth + 1) for _ in range(self.chance.randrange(1, 4))]
                return self.chance.choice(JOINS)(*parts)

    def maybe(self) -> Condition | None:
        return self.condition() if self.chance.random() < 0.7 else None

    def write(self) -> Write:
        kind = self.chance.randrange(5)
        if kind == 0:
            return Delete(key=self.key(), when=self.maybe())
        if kind <= 2:
            return Put(key=self.key(), item=self.attributes(), when=self.maybe())
        return self.update()

    def update(self) -> Update:
        plain = {name: self.text() for name in TEXTS if self.chance.random() < 0.4}
        by = {name: self.number() for name in NUMBERS if self.chance.random() < 0.4}
        joins = {"w": self.members()} if self.chance.random() < 0.5 else {}
        leaves = {"x": self.members()} if self.chance.random() < 0.5 else {}
        removed = [name for name in TEXTS if name not in plain and self.chance.random() < 0.2]
        changed = {"touched": self.chance.randrange(9)} | plain
        return Update(
            key=self.key(), set=changed, remove=removed, increment=by, include=joins, exclude=leaves, when=self.maybe()
        )

    def transaction(self) -> list[Op]:
        made: dict[Key, Op] = {}
        for _ in range(self.chance.randrange(1, 4)):
            op: Op = self.write() if self.chance.random() < 0.7 else Check(key=self.key(), when=self.condition())
            made[op.key] = op
        return list(made.values())


def play(table: Table, seed: int, run: str) -> list[object]:
    """Play the history of this seed; return every answer."""
    player = Player(seed, run)
    answers: list[object] = []
    for _ in range(STEPS):
        try:
            match player.chance.randrange(8):
                case 0:
                    table.transact(player.transaction())
                    answers.append("transacted")
                case 1:
                    answers.append(table.get(player.key()))
                case 2:
                    answers.append(
                        table.query(
                            player.key().pk,
                            prefix=player.chance.choice(["", "B", "B#"]),
                            since=player.chance.choice(["", "A", "B#2"]),
                            limit=player.chance.choice([None, 1, 2]),
                            newest_first=player.chance.random() < 0.5,
                        )
                    )
                case _:
                    answers.append(table.write(player.write()))
        except Lost as lost:
            answers.append(("lost", lost.op, lost.current))
        except StoreError as error:
            answers.append(("refused", str(error)))
    answers += [table.query(f"RUN#{run}#{number}") for number in range(PARTITIONS)]
    return answers


@pytest.mark.parametrize("seed", range(5))
def test_a_dict_answers_as_the_table_in_memory(seed: int, run: str) -> None:
    with LocalTable(IN_MEMORY) as local:
        assert play(DictTable(), seed, run) == play(local, seed, run)


@pytest.mark.parametrize("emulator", EMULATED_TABLES)
@pytest.mark.parametrize("seed", [1, 20261130])
def test_the_same_history_has_the_same_answers(
    emulator: str, seed: int, run: str, emulated_table: Callable[[str], Table]
) -> None:
    with LocalTable(IN_MEMORY) as local:
        expected = play(local, seed, run)
    found = play(emulated_table(emulator), seed, run)
    for step, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert one == other, f"answer {step} on {emulator}"
    kinds = [answer[0] if isinstance(answer, tuple) else "done" for answer in expected]
    assert kinds.count("lost") > STEPS / 10, "a history that loses nothing compares nothing"
    assert kinds.count("done") > STEPS / 4
    assert kinds.count("refused") == 0 or emulator == MOTO
