"""torchrun's handler in one process: several of them as threads, each with a store of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from spotproof.contract.items import Generation
from spotproof.errors import BadSettings, Lost
from spotproof.rendezvous.decide import Seat, Size
from spotproof.store.dynamo import DynamoTable
from spotproof.store.joins import Joins
from spotproof.store.local import IN_MEMORY, LocalTable
from spotproof.store.members import Memberships
from spotproof.store.table import Table
from tests.conformance.conftest import client_for

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousInfo

    from spotproof.rendezvous.handler import Handler

pytestmark = pytest.mark.torch
LIMIT_S = 30.0


@pytest.fixture(params=["memory", pytest.param("moto", marks=pytest.mark.emulator)])
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    if request.param == "memory":
        with LocalTable(IN_MEMORY) as made:
            yield made
        return
    client = client_for("dynamodb", request.getfixturevalue("moto_url"))
    name = "rendezvous"
    if name not in client.list_tables()["TableNames"]:
        client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in ("pk", "sk")],
            BillingMode="PAY_PER_REQUEST",
        )
    yield DynamoTable(client, name)


class Group:
    """Handlers by node name."""

    def __init__(self, table: Table, pool: ThreadPoolExecutor, *, run: str) -> None:
        self.table, self.pool, self.run = table, pool, run
        self.handlers: dict[str, Handler] = {}

    def next(self, *nodes: str) -> dict[str, RendezvousInfo]:
        from spotproof.rendezvous.handler import Handler

        found: dict[str, Future[RendezvousInfo]] = {}
        for node in nodes:
            if node not in self.handlers:
                self.handlers[node] = Handler(
                    table=self.table,
                    run=self.run,
                    seat=Seat(node=node),
                    size=Size(smallest=2, largest=2),
                    address="127.0.0.1",
                )
            found[node] = self.pool.submit(self.handlers[node].next_rendezvous)
        return {node: future.result(LIMIT_S) for node, future in found.items()}


@pytest.fixture
def group(table: Table, request: pytest.FixtureRequest) -> Iterator[Group]:
    with ThreadPoolExecutor(4) as pool:
        made = Group(table, pool, run=f"r{abs(hash(request.node.name)) % 10**6}")
        yield made
        for handler in made.handlers.values():
            handler.shutdown()


def test_each_generation_has_a_fresh_store_on_its_own_rank_0_that_tells_the_membership(group: Group) -> None:
    from spotproof.rendezvous.meeting import GENERATION_KEY

    first = group.next("a", "b")
    ports = {info.bootstrap_store_info.master_port for info in first.values() if info.bootstrap_store_info}
    assert len(ports) == 1
    told = [json.loads(info.store.get(GENERATION_KEY)) for info in first.values()]
    assert {one["generation"] for one in told} == {1}
    second = group.next("a", "b")
    assert {node: info.rank for node, info in second.items()} == {node: info.rank for node, info in first.items()}
    again = {info.bootstrap_store_info.master_port for info in second.values() if info.bootstrap_store_info}
    assert not ports & again


def test_the_control_planes_word_makes_torchrun_come_back(group: Group) -> None:
    group.next("a", "b")
    assert [handler.num_nodes_waiting() for handler in group.handlers.values()] == [0, 0]
    Memberships(group.table).mark_bad(group.run, 1)
    for handler in group.handlers.values():
        watch = handler._meeting._watch
        assert watch is not None
        watch.look()
    assert [handler.num_nodes_waiting() for handler in group.handlers.values()] == [1, 1]


def test_pitfall_5_shutdown_marks_only_this_node_and_closes_nothing(group: Group) -> None:
    group.next("a", "b")
    assert group.handlers["a"].shutdown()
    group.handlers["a"].set_closed()
    assert not group.handlers["b"].is_closed()
    assert {join.node for join in Joins(group.table).list(group.run) if join.left} == {"a"}
    assert group.next("b", "c").keys() == {"b", "c"}


def test_without_a_table_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from spotproof.rendezvous.handler import create

    parameters = RendezvousParameters("spotproof", "", "r", 1, 1)
    with pytest.raises(BadSettings, match="SPOTPROOF_LOCAL_DIR"):
        create(parameters)


def test_pitfall_3_of_eight_sealers_at_once_one_wins_each_generation(
    table: Table, request: pytest.FixtureRequest
) -> None:
    run = f"sealers-{request.node.callspec.id}"
    memberships = Memberships(table)
    start = threading.Barrier(8)

    def seal(generation: int, node: int) -> bool:
        sealed = Generation(run=run, generation=generation, members=(f"0:1:n{node}",), sealed_at=0)
        start.wait()
        try:
            memberships.seal(sealed, pointer=None)
        except Lost:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        for generation in range(1, 4):
            won = list(pool.map(lambda node, generation=generation: seal(generation, node), range(8)))
            assert won.count(True) == 1
            sealed = memberships.generation(run, generation)
            assert sealed is not None
            assert sealed.members == (f"0:1:n{won.index(True)}",)
