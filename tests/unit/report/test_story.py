"""History to story: what each entry means for a node's life, and what is measured of a recovery."""

from __future__ import annotations

import dataclasses

import pytest

from spotproof.contract import history as history_words
from spotproof.contract.history import HistoryKind as K
from spotproof.contract.items import CheckpointItem, History
from spotproof.contract.states import Cause
from spotproof.report.model import Mark, MarkKind, Phase, Stage, Story
from spotproof.report.story import Sources, tell
from tests.unit.report.stories import BEGIN, FOUR, ONE, THREE, TWO, boot, entry, history, points, segments, story

NOTHING = Sources()


def told(*entries: object, sources: Sources = NOTHING) -> Story:
    return tell(entries, sources, run="mini-gpt", title="t")  # type: ignore[arg-type]


def phases(story: Story, instance: str) -> list[tuple[Phase, float, float]]:
    node = next(node for node in story.nodes if node.instance == instance)
    return [(span.phase, round(span.begin_at - BEGIN, 1), round(span.end_at - BEGIN, 1)) for span in node.spans]


def test_a_node_with_a_notice_flushes_and_drains_until_it_is_killed() -> None:
    assert phases(story(), ONE) == [
        (Phase.BOOTING, 1.5, 3.7),
        (Phase.PREPARING, 3.7, 8.0),
        (Phase.PARKED, 8.0, 8.4),
        (Phase.RESTORING, 8.4, 9.8),
        (Phase.TRAINING, 9.8, 26.0),
        (Phase.FLUSHING, 26.0, 27.9),
        (Phase.DRAINING, 27.9, 51.0),
    ]


def test_a_killed_node_ends_when_it_was_killed_and_not_when_that_was_noticed() -> None:
    assert phases(story(), TWO)[-1] == (Phase.TRAINING, 35.9, 56.0)
    marks = next(node for node in story().nodes if node.instance == TWO).marks
    assert [mark.kind for mark in marks] == [MarkKind.KILLED, MarkKind.LOST]


def test_a_frozen_node_lives_on_until_it_finds_itself_superseded() -> None:
    assert phases(story(), THREE)[-2:] == [(Phase.TRAINING, 73.6, 86.0), (Phase.FROZEN, 86.0, 108.0)]


def test_without_an_onlooker_a_silent_node_ends_when_its_loss_was_seen() -> None:
    told_here = told(*history(), sources=Sources())
    assert phases(told_here, TWO)[-1] == (Phase.TRAINING, 35.9, 62.0)


def test_a_rebalance_recommendation_interrupts_nothing() -> None:
    advice = entry(20, K.NOTICE, instance=ONE, incarnation=1, cause=Cause.REBALANCE)
    story = told(*boot(1, ONE, 1, parked=5, sealed=6, step=0), advice, entry(30, K.STATUS))
    assert phases(story, ONE)[-1] == (Phase.TRAINING, 7.4, 30.0)
    assert [mark.kind for mark in story.nodes[0].marks] == [MarkKind.ADVICE]


AHEAD = f"{history_words.AHEAD}: its successor gets ready first"


def test_a_successor_that_was_ready_leaves_only_what_came_after_the_notice() -> None:
    claim = entry(20, K.CLAIMED, incarnation=2, instance=ONE, cause=Cause.REBALANCE, detail=AHEAD)
    notice = entry(60, K.NOTICE, instance=ONE, incarnation=1, cause=Cause.INTERRUPTION)
    flushed = entry(63, K.FLUSHED, instance=ONE, incarnation=1, step=100)
    successor = boot(22, TWO, 2, parked=40, sealed=64, step=100)
    story = told(*boot(1, ONE, 1, parked=5, sealed=6, step=0), claim, notice, flushed, *successor)
    [recovery] = story.recoveries
    stages = {one.stage: (round(one.begin_at - BEGIN, 1), round(one.end_at - BEGIN, 1)) for one in recovery.stages}
    assert round(recovery.begin_at - BEGIN, 1) == 60.0
    assert (Stage.REQUEST in stages, Stage.BOOT in stages) == (False, False)
    assert (stages[Stage.FLUSH], stages[Stage.PARK]) == ((60.0, 63.0), (60.0, 64.0))


def test_an_extra_node_that_was_never_needed_is_no_recovery() -> None:
    claim = entry(20, K.CLAIMED, incarnation=2, instance=ONE, cause=Cause.REBALANCE, detail=AHEAD)
    ended = entry(90, K.SURPLUS_ENDED, instance=TWO, incarnation=2, cause=Cause.REBALANCE)
    story = told(
        *boot(1, ONE, 1, parked=5, sealed=6, step=0), claim, entry(22, K.BOUND, instance=TWO, incarnation=2), ended
    )
    assert story.recoveries == ()


def test_a_notice_to_a_node_that_does_not_train_yet_flushes_nothing() -> None:
    entries = [entry(1, K.BOUND, instance=ONE, incarnation=1), entry(2, K.NOTICE, instance=ONE, incarnation=1)]
    assert phases(told(*entries, entry(9, K.STATUS)), ONE) == [(Phase.BOOTING, 1.0, 9.0)]


def test_a_seal_that_names_nobody_is_for_every_node() -> None:
    entries = [entry(1, K.PARKED, instance=name, incarnation=1, slot=slot) for slot, name in enumerate((ONE, TWO))]
    story = told(*entries, entry(3, K.SEALED, slot=None), entry(5, K.STATUS))
    for name in (ONE, TWO):
        assert phases(story, name) == [(Phase.PARKED, 1.0, 3.0), (Phase.RESTORING, 3.0, 5.0)]


def test_the_first_step_is_known_from_the_loss_log_where_history_has_none() -> None:
    entries = [one for one in history() if one.what != K.FIRST_STEP]
    story = told(*entries, sources=Sources(segments=segments()))
    assert (Phase.TRAINING, 9.8, 26.0) in phases(story, ONE)
    assert round((story.recoveries[0].end_at or 0) - BEGIN, 1) == 35.9


def test_the_first_claim_is_no_recovery() -> None:
    assert [one.incarnation for one in story().recoveries] == [2, 3, 4]


def seconds(recovery: int) -> dict[Stage, float]:
    return {span.stage: round(span.seconds, 1) for span in story().recoveries[recovery].stages}


def test_stages_of_a_recovery_with_a_notice() -> None:
    assert seconds(0) == {
        Stage.NOTICE: 0.4,
        Stage.FLUSH: 1.9,
        Stage.REQUEST: 1.7,
        Stage.BOOT: 5.9,
        Stage.PARK: 0.5,
        Stage.RESTORE: 1.1,
        Stage.FIRST_STEP: 0.3,
    }


def test_stages_of_a_silent_death_begin_at_the_last_step() -> None:
    assert Stage.FLUSH not in seconds(1)
    last = segments()[1].points[-1].at or 0.0
    assert seconds(1)[Stage.NOTICE] == round(BEGIN + 62.2 - last, 1)


@pytest.mark.parametrize(
    ("number", "nodes", "last", "resumed", "steps"),
    [(0, (ONE, TWO), 128, 128, 0), (1, (TWO, THREE), 271, 260, 11), (2, (THREE, FOUR), 384, 360, 24)],
)
def test_steps_lost_are_measured_from_the_loss_logs(
    number: int, nodes: tuple[str, str], last: int, resumed: int, steps: int
) -> None:
    recovery = story().recoveries[number]
    assert (recovery.lost, recovery.replacement) == nodes
    assert (recovery.last_step, recovery.resumed_step, recovery.steps_lost) == (last, resumed, steps)


def test_standstill_is_from_the_last_old_step_to_the_first_new_one() -> None:
    recovery = story().recoveries[1]
    last = segments()[1].points[-1].at or 0.0
    assert recovery.standstill_s == pytest.approx(BEGIN + 73.6 - last)


def test_what_is_not_recorded_is_unknown_and_not_guessed() -> None:
    recovery = told(entry(5, K.CLAIMED, incarnation=2, cause=Cause.SILENCE)).recoveries[0]
    assert (recovery.steps_lost, recovery.standstill_s, recovery.end_at) == (None, None, None)
    assert recovery.lost == recovery.replacement == ""


def test_a_step_count_never_goes_below_zero() -> None:
    recovery = dataclasses.replace(story().recoveries[0], last_step=5, resumed_step=9)
    assert recovery.steps_lost == 0


def test_commits_are_told_once() -> None:
    items = [
        CheckpointItem(run="mini-gpt", generation=1, step=20, world=1, done=frozenset({"0"}), committed_at=BEGIN + 3),
        CheckpointItem(run="mini-gpt", generation=1, step=40, world=1, done=frozenset(), committed_at=None),
    ]
    entries = [entry(3.2, K.COMMITTED, step=20), entry(9, K.COMMITTED, step=60)]
    commits = told(*entries, sources=Sources(checkpoints=items)).commits
    assert [(commit.step, commit.at - BEGIN) for commit in commits] == [(20, 3.0), (60, 9.0)]


def test_entries_of_other_runs_are_not_told() -> None:
    foreign = dataclasses.replace(entry(1, K.BOUND, instance=ONE, incarnation=1), run="other")
    assert told(foreign).nodes == ()


def test_history_in_any_order_tells_the_same_story() -> None:
    assert told(*history()) == told(*reversed(history()))


def test_an_empty_history_is_an_empty_story() -> None:
    story = told()
    assert (story.begin_at, story.end_at, story.nodes, story.recoveries) == (0.0, 0.0, (), ())


# --- as the control plane writes it: some moments in whole seconds, some told late, some by nobody --------------
def coarse() -> list[History]:
    who = {"instance": TWO, "incarnation": 2}
    return [
        entry(0.3, K.CLAIMED, incarnation=1, instance="none", cause=Cause.SUBMIT),
        entry(1.5, K.BOUND, instance=ONE, incarnation=1),
        entry(1, K.BOOTED, instance=ONE, incarnation=1),
        entry(8, K.PROMOTED, instance=ONE, incarnation=1),
        entry(26, K.NOTICE, instance=ONE, incarnation=1, cause=Cause.INTERRUPTION),
        entry(26.4, K.CLAIMED, incarnation=2, instance=ONE, cause=Cause.INTERRUPTION),
        entry(27.2, K.LAUNCH_ANSWERED, slot=None, detail="launch 2: 1 of 1 instances, no errors"),
        entry(28.1, K.BOUND, cause=Cause.INTERRUPTION, **who),
        entry(30, K.BOOTED, **who),
        entry(34, K.PROMOTED, step=128, **who),
        entry(33, K.FLUSHED, instance=ONE, incarnation=1, step=128, detail="committed"),
        entry(52, K.ENDED, instance=ONE),
        entry(60, K.LAUNCH_ANSWERED, slot=None, detail="launch 3: not for this slot"),
    ]


def coarsely_told() -> Story:
    flush = CheckpointItem(run="mini-gpt", generation=1, step=128, world=1, committed_at=BEGIN + 27)
    return told(*coarse(), sources=Sources(segments=segments()[:2], checkpoints=[flush]))


def test_a_claim_names_the_lost_instance_and_makes_no_node_of_it() -> None:
    assert [(node.incarnation, node.instance) for node in coarsely_told().nodes] == [(1, ONE), (2, TWO)]
    recovery = coarsely_told().recoveries[0]
    assert (recovery.lost, recovery.replacement) == (ONE, TWO)


def test_whole_seconds_do_not_turn_a_life_round() -> None:
    assert phases(coarsely_told(), ONE) == [
        (Phase.PREPARING, 1.0, 8.0),
        (Phase.RESTORING, 8.0, 9.8),
        (Phase.TRAINING, 9.8, 26.0),
        (Phase.FLUSHING, 26.0, 27.0),
        (Phase.DRAINING, 27.0, 52.0),
    ]


def test_a_flush_ended_when_it_was_durable_and_not_when_that_was_told() -> None:
    spans = {span.stage: span for span in coarsely_told().recoveries[0].stages}
    assert spans[Stage.FLUSH].end_at == BEGIN + 27
    assert spans[Stage.BOOT].end_at == BEGIN + 34
    assert Stage.PARK not in spans, "nobody told when it was ready"


def test_answers_of_other_launches_are_no_remark() -> None:
    assert coarsely_told().recoveries[0].remarks == ("launch 2: 1 of 1 instances, no errors",)


def test_a_second_that_was_cut_off_is_no_negative_stage() -> None:
    entries = [one for one in coarse() if one.what != K.PROMOTED]
    story = told(*entries, entry(28, K.PROMOTED, instance=TWO, incarnation=2))
    spans = {span.stage: span.seconds for span in story.recoveries[0].stages}
    assert spans[Stage.BOOT] == 0


def test_a_notice_has_the_time_at_which_an_onlooker_saw_it_given() -> None:
    # A rehearsal gives 20 seconds: its event is dated back by the rest of the two minutes.
    dated_back = [
        dataclasses.replace(one, at_ms=one.at_ms - 100_000) if one.what == K.NOTICE else one for one in coarse()
    ]
    story = told(*dated_back, sources=Sources(marks=[(ONE, Mark(kind=MarkKind.NOTICE, at=BEGIN + 25.9))]))
    assert story.recoveries[0].begin_at == BEGIN + 25.9
    assert story.begin_at == BEGIN + 0.3


def test_a_node_that_was_seen_to_be_killed_is_not_marked_as_ended_too() -> None:
    story = told(*coarse(), sources=Sources(marks=[(ONE, Mark(kind=MarkKind.KILLED, at=BEGIN + 52.3))]))
    assert [one.kind for one in story.nodes[0].marks] == [MarkKind.NOTICE, MarkKind.KILLED]


def test_one_notice_is_marked_once_however_many_tell_it() -> None:
    mark = (ONE, Mark(kind=MarkKind.NOTICE, at=BEGIN + 26.7))
    story = told(*coarse(), sources=Sources(marks=[mark]))
    assert [one.kind for one in story.nodes[0].marks].count(MarkKind.NOTICE) == 1


def test_steps_of_a_node_that_woke_up_later_count_for_no_one() -> None:
    frozen = dataclasses.replace(
        segments()[0], points=(*segments()[0].points, *points(129, 131, begin=60, seconds=0.1))
    )
    story = told(*coarse(), sources=Sources(segments=[frozen, segments()[1]]))
    assert (story.recoveries[0].last_step, story.recoveries[0].steps_lost) == (128, 0)


def test_a_successor_that_never_trained_leaves_the_steps_to_the_one_before() -> None:
    died = [
        entry(29, K.CLAIMED, incarnation=3, instance=TWO, cause=Cause.DISAPPEARED),
        entry(30, K.BOUND, instance=THREE, incarnation=3),
    ]
    third = dataclasses.replace(segments()[1], incarnation=3)
    story = told(*coarse()[:8], *died, sources=Sources(segments=[segments()[0], third]))
    first, second = story.recoveries
    assert (first.replacement, first.end_at) == (TWO, None)
    assert (second.lost, second.steps_lost) == (TWO, 0)


def test_an_onlookers_mark_needs_no_history() -> None:
    marks = Sources(marks=((ONE, Mark(kind=MarkKind.KILLED, at=BEGIN + 4.0)),))
    story = told(entry(1, K.BOUND, instance=ONE, incarnation=1), sources=marks)
    assert phases(story, ONE) == [(Phase.BOOTING, 1.0, 4.0)]


def test_a_flush_that_kept_an_older_commit_is_not_told_at_that_commits_time() -> None:
    """The checkpoint of step 20 was made by the node before: its time says nothing of this node's flush."""
    who = {"instance": ONE, "incarnation": 2}
    found = told(
        *boot(30, ONE, 2, parked=35, sealed=36, step=20),
        entry(50, K.NOTICE, cause=Cause.INTERRUPTION, **who),
        entry(60, K.FLUSHED, step=20, detail="kept-last", **who),
        sources=Sources(
            checkpoints=(CheckpointItem(run="mini-gpt", generation=1, step=20, world=1, committed_at=BEGIN),)
        ),
    )
    assert phases(found, ONE)[-1][0] is Phase.FLUSHING
    assert (Phase.TRAINING, 37.4, 50.0) in phases(found, ONE)


def test_a_promotion_is_at_the_moment_at_which_the_node_joined() -> None:
    """The control plane knows the second of the seal, the node its own moment: the stages must not cross."""
    who = {"instance": TWO, "incarnation": 2}
    found = told(
        entry(0, K.CLAIMED, incarnation=2, instance=ONE, cause=Cause.SILENCE),
        entry(1, K.BOUND, **who),
        entry(10, K.PROMOTED, step=40, **who),
        entry(10.6, K.PARKED, **who),
        entry(10.9, K.SEALED, **who),
        entry(11.5, K.RESTORED, **who),
        entry(11.7, K.FIRST_STEP, **who),
    )
    [recovery] = found.recoveries
    seconds = {span.stage: round(span.seconds, 1) for span in recovery.stages}
    assert seconds[Stage.BOOT] == 9.6
    assert seconds[Stage.PARK] == 0.3
    assert seconds[Stage.RESTORE] == 0.6
    assert recovery.resumed_step == 40


def test_a_recovery_ends_with_the_first_step_of_the_node_that_stood_by() -> None:
    """Whoever was launched for the lost one stands by now, and makes no step."""
    beside = {"slot": 1, "incarnation": 1, "instance": TWO}
    found = told(
        entry(0, K.CLAIMED, incarnation=1, instance="none", cause=Cause.SUBMIT),
        *boot(1.5, ONE, 1, parked=8, sealed=8.4, step=0),
        entry(2, K.BOUND, **beside),
        entry(9, K.PARKED, **beside),
        entry(60, K.LOST, instance=ONE, incarnation=1, cause=Cause.DISAPPEARED),
        entry(60.2, K.CLAIMED, incarnation=2, instance=ONE, cause=Cause.DISAPPEARED),
        entry(61, K.SEALED, step=40, **beside),
        entry(61, K.TAKEN_OVER, incarnation=2, cause=Cause.DISAPPEARED, detail="1:1"),
        entry(62, K.RESTORED, **beside),
        entry(63, K.FIRST_STEP, step=41, **beside),
        entry(70, K.BOUND, instance=THREE, incarnation=2),
        entry(80, K.PARKED, instance=THREE, incarnation=2),
    )
    [recovery] = found.recoveries
    assert (recovery.lost, recovery.replacement, recovery.resumed_step) == (ONE, TWO, 40)
    assert recovery.end_at == BEGIN + 63
    assert [span.stage for span in recovery.stages] == [Stage.NOTICE, Stage.RESTORE, Stage.FIRST_STEP]
