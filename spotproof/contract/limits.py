"""Numbers that are product decisions (DESIGN section 10). A run may change those that RunSpec names."""

from __future__ import annotations

from typing import Final

NOTICE_S: Final = 120  # what a Spot notice gives when it names no time
FLUSH_MARGIN_S: Final = 10  # flush budget = deadline - now - this
PREFLIGHT_BUDGET_S: Final = 90  # assumed only before the run
SURVIVORS_BARRIER_S: Final = 30
JOIN_AFTER_DEADLINE_S: Final = 10  # a successor joins when the holder's deadline is past by this

JOIN_POLL_S: Final = 1.0  # a parked node looks at NEWEST; in training too
MEMBER_BEAT_S: Final = 5.0
JOINING_SILENCE_S: Final = 15.0  # of a member, while others wait for it
MEMBER_SILENCE_S: Final = 60.0  # of a member, otherwise

IMDS_POLL_S: Final = 2
IMDS_TOKEN_TTL_S: Final = 3600
IMDS_START_LIMIT_S: Final = 5  # a start never waits longer for a metadata token (EV-06)
HEAD_POLL_S: Final = 2
HEARTBEAT_S: Final = 15
SILENCE_S: Final = 60
SILENCE_SEEN_WITHIN_S: Final = 120
BEAT_LATE_S: Final = 2  # after an outage a node's next beat may be this late: the longest wait between two tries
MASS_SILENCE_MIN_SLOTS: Final = 5
MASS_SILENCE_SHARE: Final = 0.20

FIRST_HEARTBEAT_S: Final = 600  # give up on a launched node that never heartbeats
ORPHAN_AGE_S: Final = 600
UNKNOWN_TO_EC2_GRACE_S: Final = 60  # DescribeInstances is eventually consistent
LAST_COMMIT_WAIT_S: Final = 600  # a finished run's nodes end when this has passed without the last commit

LAUNCHER_LEASE_S: Final = 60
LAUNCH_RETRY_S: Final = 60  # next attempt after one that brought nothing
SWEEP_PERIOD_S: Final = 60
RESTING_PERIOD_S: Final = 5 * SWEEP_PERIOD_S  # between two looks at a run that wants nothing for now
COLLECT_PERIOD_S: Final = 3600  # of old checkpoints: one an hour is kept, so that nothing is gained by more

POOL_COOLDOWN_S: Final = 600
POOL_COOLDOWN_MAX_S: Final = 7200
POOL_NOT_OFFERED_S: Final = 86_400

RECOVERIES_WITHOUT_COMMIT: Final = 25
TRAINER_FAILURES: Final = 3
NODE_FAULTS: Final = 3  # nodes that failed before they joined, without a commit between
FALLBACK_AFTER: Final = 3  # failed Spot attempts before on-demand, where the run allows it
FAILBACK_AFTER_S: Final = 1800  # on-demand for so long, and so long without a loss in Spot, before going back
GANG_PATIENCE_S: Final = 600  # a gang waits so long for its own zone
IDENTICAL_REFUSALS: Final = 5  # of a whole request, in a row, before the run is blocked
MARKET_LOOK_S: Final = 3600  # how old a price or a placement score may be
SPEND_LOOK_S: Final = 300  # how often the spend estimate is brought up to date

PREWARM_KEEP_S: Final = 1800  # a node that was started for advice alone ends when no notice has come for so long
STORM_AFTER: Final = 5  # nodes started for advice alone by the whole stack within STORM_WINDOW_S
STORM_WINDOW_S: Final = 600
STORM_QUIET_S: Final = 3600  # people are told of a storm once in this time
MOVE_LEAD_S: Final = 3600  # a planned move begins so long before its date
DRILL_NOTICE_MAX_S: Final = 1800
LATE_FLUSH_S: Final = 240  # before its date the holder is told to flush, ready or not: two looks of the sweep fit

SAVE_THROTTLE_S: Final = 60  # a periodic save that is throttled gives up after this
MULTIPART_ABORT_DAYS: Final = 1
NONCURRENT_DAYS: Final = 1
HISTORY_TTL_S: Final = 90 * 86_400
CLOCK_SKEW_MAX_S: Final = 300

EVENT_MAX_AGE_S: Final = 3600  # a late warning is still good for replacing
SSM_DELIVERY_S: Final = 30  # the API's minimum (SSM-03)
EXECUTION_LIMIT_S: Final = 100
ENGAGED_SLOTS_MAX: Final = 1000  # slots of one run; the bitmap in HEAD stays under 1 KB

SHARD_LEASE_S: Final = 1800
LIVE_SHARDS: Final = 16

# An elastic run.
SHRINK_AFTER_S: Final = 120  # a place without capacity for so long is not waited for
REGROW_AFTER_S: Final = 60  # a node that has come waits so long, and for a commit, before all re-form with it
