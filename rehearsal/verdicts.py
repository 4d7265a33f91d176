"""What a rehearsal promises, each as a pure function of the evidence; a verdict says what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rehearsal.evidence import Departure, DepartureKind, Evidence, around, steps_lost
from rehearsal.permissions.ledger import Use
from spotproof.contract import tags


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One promise: `name` is stable (sabotages name the one they must break), `says` has the measured numbers."""

    name: str
    passed: bool
    says: str


NOTHING_LOST: Final = "steps lost with notice"
SILENT_LOSS: Final = "steps lost in the silent death"
WHOLE_ONLY: Final = "damaged checkpoint never resumed"
BIT_EQUAL: Final = "loss curve"
SAMPLES: Final = "sample order"
ONE_REPLACEMENT: Final = "replacements"
FENCED: Final = "woken node"
COMMITS: Final = "commits"
TAGGED: Final = "tags"
NOTHING_LEFT: Final = "left running"
FINISHED: Final = "run"
DEPLOYED: Final = "template"
EXERCISED: Final = "exercised"
PERMISSIONS: Final = "permissions"
NO_SURPRISES: Final = "surprises"


def judge(evidence: Evidence) -> tuple[Verdict, ...]:
    """Every verdict that this evidence allows; promises of acts that were not played are left out."""
    found = (check(evidence) for check in _CHECKS)
    return tuple(verdict for verdict in found if verdict is not None)


def _of_kind(evidence: Evidence, kind: DepartureKind) -> list[Departure]:
    return [d for d in evidence.departures if d.kind is kind]


def _lost(evidence: Evidence, departure: Departure) -> str:
    lost = steps_lost(evidence, departure)
    return f"{departure.act}: {'nobody went on' if lost is None else lost}"


def nothing_lost(evidence: Evidence) -> Verdict | None:
    """Zero steps lost where there was a notice."""
    noticed = _of_kind(evidence, DepartureKind.NOTICE)
    if not noticed:
        return None
    passed = all(steps_lost(evidence, d) == 0 for d in noticed)
    return Verdict(name=NOTHING_LOST, passed=passed, says=", ".join(_lost(evidence, d) for d in noticed))


def silent_loss(evidence: Evidence) -> Verdict | None:
    """At most one committed interval where the node just died."""
    silent = [d for d in _of_kind(evidence, DepartureKind.SILENT) if not d.damaged]
    if not silent:
        return None
    lost = [steps_lost(evidence, d) for d in silent]
    passed = all(n is not None and 0 <= n <= evidence.interval_steps for n in lost)
    told = ", ".join(_lost(evidence, d) for d in silent)
    says = f"{told} (one committed interval is {evidence.interval_steps})"
    return Verdict(name=SILENT_LOSS, passed=passed, says=says)


def whole_only(evidence: Evidence) -> Verdict | None:
    """After damage the run resumes from the newest commit that is whole, exactly."""
    damaged = [d for d in evidence.departures if d.damaged]
    if not damaged:
        return None
    told, passed = [], True
    for departure in damaged:
        pair = around(evidence, departure)
        resumed = None if pair is None else pair[1].first - 1
        passed = passed and resumed == departure.good_step
        told.append(f"{departure.act}: resumed at {resumed}, newest whole commit is {departure.good_step}")
    return Verdict(name=WHOLE_ONLY, passed=passed, says="; ".join(told))


def bit_equal(evidence: Evidence) -> Verdict:
    """Every loss of every process equals the uninterrupted run's, to the last bit."""
    wanted = {point.step: point.loss.hex() for point in evidence.reference}
    differing = sorted({point.step for point in evidence.points if wanted.get(point.step) != point.loss.hex()})
    missing = sorted(set(wanted) - {point.step for point in evidence.points})
    passed = bool(wanted) and not differing and not missing
    if passed:
        says = f"bit-equal to the uninterrupted run on all {len(wanted)} steps"
    elif differing:
        says = f"differs from the uninterrupted run at {len(differing)} steps, first at step {differing[0]}"
    else:
        says = f"{len(missing)} steps of the uninterrupted run were never trained"
    return Verdict(name=BIT_EQUAL, passed=passed, says=says)


def sample_order(evidence: Evidence) -> Verdict:
    """Every step saw the samples that it sees in the uninterrupted run."""
    wanted = {point.step: point.samples for point in evidence.reference}
    differing = sorted({point.step for point in evidence.points if wanted.get(point.step) != point.samples})
    says = f"{len(wanted)} steps saw the same samples" if not differing else f"differs first at step {differing[0]}"
    return Verdict(name=SAMPLES, passed=bool(wanted) and not differing, says=says)


def one_replacement(evidence: Evidence) -> Verdict:
    """As many instances as losses, plus the first, plus what the script declares."""
    losses = len({d.instance for d in evidence.departures})
    launched, extras = len(evidence.launched), Counter(evidence.extras)
    beside = "".join(f", {n} {why}" for why, n in extras.items())
    says = f"{launched - evidence.first - len(evidence.extras)} for {losses} lost nodes{beside}"
    passed = launched == losses + evidence.first + len(evidence.extras)
    return Verdict(name=ONE_REPLACEMENT, passed=passed, says=says)


def fenced(evidence: Evidence) -> Verdict | None:
    """A node that was replaced while frozen commits nothing when it wakes, and ends itself."""
    if evidence.woken_ended is None:
        return None
    passed = evidence.woken_ended and not evidence.woken_committed
    ended = "ended itself" if evidence.woken_ended else "is still training"
    says = f"committed {len(evidence.woken_committed)} checkpoints and {ended}"
    return Verdict(name=FENCED, passed=passed, says=says)


def commits(evidence: Evidence) -> Verdict:
    """Every pointer that was ever seen named a whole checkpoint, and it only rose."""
    passed = not evidence.audit_problems and bool(evidence.commits)
    problems = "" if not evidence.audit_problems else f"; {evidence.audit_problems[0]}"
    return Verdict(name=COMMITS, passed=passed, says=f"{len(evidence.commits)} read back byte by byte{problems}")


def tagged(evidence: Evidence) -> Verdict:
    """Everything that was launched says whose it is."""
    bad = [m.instance for m in evidence.launched if not set(tags.ALL) <= set(m.tags)]
    says = f"all {len(evidence.launched)} instances carry {len(tags.ALL)} tags" if not bad else f"{bad} lack some"
    return Verdict(name=TAGGED, passed=not bad and bool(evidence.machines), says=says)


def nothing_left(evidence: Evidence) -> Verdict:
    """When the run is over, nothing of it is alive: no instance, no process."""
    left = evidence.left_running
    return Verdict(name=NOTHING_LEFT, passed=not left, says="nothing" if not left else ", ".join(left))


def finished(evidence: Evidence) -> Verdict:
    """The run reached its last step and the stack knows it."""
    last = max((point.step for point in evidence.points), default=0)
    committed = max((c.step for c in evidence.commits), default=0)
    passed = last == committed == evidence.steps and evidence.run_status == "done"
    says = f"status {evidence.run_status}, trained to step {last} of {evidence.steps}, committed step {committed}"
    return Verdict(name=FINISHED, passed=passed, says=says)


def deployed(evidence: Evidence) -> Verdict | None:
    """CREATE_COMPLETE proves nothing: every resource of the template was found again with its properties."""
    if evidence.coverage is None:
        return None
    findings = evidence.coverage.gate_findings
    says = f"all {evidence.coverage.resources} resources created and described"
    return Verdict(name=DEPLOYED, passed=not findings, says=says if not findings else "; ".join(findings[:3]))


def exercised(evidence: Evidence) -> Verdict | None:
    """Every rule matched, every queue carried, every function ran, every step of the document ran on a node."""
    if evidence.coverage is None:
        return None
    unused = {
        "rules": evidence.coverage.rules_silent,
        "queues": evidence.coverage.queues_unused,
        "functions": evidence.coverage.functions_unused,
        "document steps": evidence.coverage.document_steps_unused,
    }
    idle = [f"{kind} {', '.join(names)}" for kind, names in unused.items() if names]
    says = "every rule, queue, function and document step" if not idle else f"never used: {'; '.join(idle)}"
    return Verdict(name=EXERCISED, passed=not idle, says=says)


def permissions(evidence: Evidence) -> Verdict | None:
    """Every call is allowed by the deployed roles, no attack is, and where all was played every grant was needed."""
    proof = evidence.permissions
    if proof is None:
        return None
    unused = tuple(f"unused: {one}" for one in proof.unused()) if proof.whole else ()
    wrong = (*(f"refused: {one}" for one in proof.refused), *proof.admitted, *unused)
    if wrong:
        return Verdict(name=PERMISSIONS, passed=False, says=f"{len(wrong)} wrong: {'; '.join(wrong[:3])}")
    excused = proof.count(Use.EXCUSED)
    grants = f"{len(proof.ledger)} grants, none unused but {excused} with a reason; " if proof.whole else ""
    says = f"{proof.calls} calls are {proof.requests} different requests, all allowed; {grants}"
    passed = bool(proof.calls and proof.attacks)
    return Verdict(name=PERMISSIONS, passed=passed, says=f"{says}{proof.attacks} attacks refused")


def no_surprises(evidence: Evidence) -> Verdict:
    """No message in a dead-letter queue, nothing that the emulated account could not play; but what the script made."""
    dead = [f"{n} in {queue}" for queue, n in Counter(evidence.dead_letters).items() if n]
    found = [*dead, *evidence.plane_problems]
    explained = "".join(f", {n} explained: {why}" for why, n in evidence.explained.items())
    says = "none" if not found else "; ".join(found[:3])
    return Verdict(name=NO_SURPRISES, passed=not found, says=says + explained)


_CHECKS: Final[tuple[Callable[[Evidence], Verdict | None], ...]] = (
    nothing_lost,
    silent_loss,
    whole_only,
    bit_equal,
    sample_order,
    one_replacement,
    fenced,
    commits,
    tagged,
    finished,
    nothing_left,
    deployed,
    exercised,
    permissions,
    no_surprises,
)
