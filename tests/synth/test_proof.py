"""The proof over a rehearsal counts what was needed: a grant that nobody used and a call that nobody may make show."""

from __future__ import annotations

from dataclasses import replace

from rehearsal.permissions import excuses
from rehearsal.permissions.estate import NODE, Estate
from rehearsal.permissions.excuses import EXCUSES
from rehearsal.permissions.ledger import Use
from rehearsal.permissions.proof import Asked, Proof, judge
from rehearsal.permissions.requests import Request
from spotproof.contract import keys
from spotproof.contract.names import Function
from tests.synth.policy import estate_of
from tests.synth.template import Assembly


def judged(estate: Estate, *asked: tuple[str, Request]) -> Proof:
    by_actor: Asked = {}
    for actor, request in asked:
        by_actor.setdefault(actor, {})[request.key()] = request
    return judge(estate, by_actor, calls=len(asked), underivable=(), whole=True)


def publish(estate: Estate) -> Request:
    return Request(action="sns:Publish", resource=estate.topic)


def test_a_grant_that_nobody_used_is_named_with_its_role(assembly: Assembly) -> None:
    estate = estate_of(assembly)
    proof = judged(estate)
    assert f"signals: TellPeople: sns:Publish on {estate.topic}" in proof.unused()
    assert f"node: WriteNodeItems: dynamodb:PutItem on {estate.table}" in proof.unused()
    assert len(proof.unused()) + proof.count(Use.EXCUSED) == len(proof.ledger)
    assert proof.refused == ()
    assert proof.admitted == ()


def test_what_one_function_of_the_pipeline_used_the_others_may_keep(assembly: Assembly) -> None:
    estate = estate_of(assembly)
    proof = judged(estate, (Function.SIGNALS, publish(estate)))
    assert not [one for one in proof.unused() if "TellPeople" in one]
    assert proof.count(Use.SHARED) == 2


def test_the_sweep_is_no_part_of_the_pipeline(assembly: Assembly) -> None:
    estate = estate_of(assembly)
    tell = next(one for one in estate.statements[Function.SIGNALS] if one.sid == "TellPeople")
    wider = {**estate.statements, Function.SWEEP.value: (*estate.statements[Function.SWEEP], tell)}
    proof = judged(replace(estate, statements=wider), (Function.SIGNALS, publish(estate)))
    assert f"sweep: TellPeople: sns:Publish on {estate.topic}" in proof.unused()


def test_a_call_that_the_role_does_not_allow_is_named(assembly: Assembly) -> None:
    estate = estate_of(assembly)
    write = Request(
        action="dynamodb:PutItem",
        resource=estate.table,
        context={"dynamodb:LeadingKeys": (keys.run_partition("r"),)},
    )
    (said,) = judged(estate, (NODE, write)).refused
    assert said.startswith("node: dynamodb:PutItem on ")


def test_a_request_is_decided_once_however_often_it_is_made(assembly: Assembly) -> None:
    estate = estate_of(assembly)
    proof = judged(estate, *[(Function.SIGNALS.value, publish(estate)) for _ in range(9)])
    assert (proof.calls, proof.requests) == (9, 1)


def test_an_excuse_for_what_nobody_has_is_stale(assembly: Assembly) -> None:
    estate = estate_of(assembly)
    assert excuses.stale({}) == tuple(
        f"the excuse for {sid} of {'/'.join(one.actors)}: nobody has such a grant"
        for one in EXCUSES
        for sid in one.sids
    )
    without = tuple(one for one in estate.statements[NODE] if one.sid != "PullImages")
    proof = judged(replace(estate, statements={**estate.statements, NODE: without}))
    assert "the excuse for PullImages of node: nobody has such a grant" in proof.unused()


def test_every_excuse_has_its_reason() -> None:
    assert [one.sids for one in EXCUSES if len(one.because) < 10] == []
    assert len(EXCUSES) <= 8
