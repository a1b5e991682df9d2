"""Broken Lua: transitions of the Redis storage."""

from __future__ import annotations

from .mutation import Mutation


def _lua(name: str, invariant: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(f"lua-{name}", invariant, f"storage/redis/{file}.lua", old, new, tests)


_LONG_LISTS = "tests/mutations/test_long_lists.py::"
_RINGS = "test_i33_whatever_makes_a_job_claimable_rings"

LUA = (
    # -- settle
    _lua("settle-without-token", "I21 only the present holder settles", "settle",
         "token == tokens[i] and ", "", "test_i21_nobody_but_the_present_holder_settles"),
    _lua("settle-without-nonce", "I21 only the present incarnation is settled", "settle",
         " and string.sub(raw, NONCE_AT, NONCE_AT + 7) == nonces[i]", "",
         "test_i21_a_replaced_incarnation_cannot_settle_its_successor"),
    _lua("settle-forgets-its-answer", "I25 repeating a settle gives the first answer", "settle",
         "r[SETTLED] == token and r[ANSWER] or '-'", "'-'", "test_i25_repeating_a_settle_gives_the_first_answer"),
    _lua("release-counts", "I17 a release gives the attempt back", "settle",
         "r[ATTEMPTS] - 1", "r[ATTEMPTS]", "test_release_gives_the_attempt_back_but_not_the_token"),
    _lua("release-to-the-back", "I20 released jobs go to the front", "settle",
         "place(fronts, ", "place(backs, ", "test_i20_released_jobs_go_to_the_front_in_their_order"),
    _lua("retry-to-the-front", "I20 retried jobs go to the back", "settle",
         "place(backs, ", "place(fronts, ", "test_i20_retried_jobs_go_to_the_back"),
    _lua("retry-without-end", "I27 used up attempts end in the dead letters", "settle",
         "verb == 'F' or r[ATTEMPTS] >= r[MAX]", "verb == 'F'", "test_i27_used_up_attempts_end_in_the_dead_letters"),
    _lua("cancelled-run-is-retried", "I36 a cancelled run is never retried", "settle",
         "has(r[FLAGS], CANCEL) ~= 0", "false", "test_i36_a_cancelled_run_is_never_retried"),
    _lua("cancel-beats-complete", "I36 the first of settle and cancel wins", "settle",
         "elseif verbs[i] == 'C' then", "elseif verbs[i] == 'C' and has(string.byte(raw, 2), CANCEL) == 0 then",
         "test_i36_complete_wins_over_a_request"),
    # -- recovery
    _lua("recovery-ignores-attempts", "I17 attempts never exceed max_attempts", "recovery",
         "r[ATTEMPTS] >= r[MAX]", "false", "test_a_recovery_that_uses_up_the_attempts_says_so"),
    _lua("recovery-counts-a-batch", "I17 recovering a batch does not count", "recovery",
         "r[ATTEMPTS] - 1", "r[ATTEMPTS]",
         "test_i17_recovering_a_batch_does_not_count_and_makes_its_jobs_solo"),
    _lua("recovery-leaves-solo-out", "I17 at most one uncounted crash", "recovery",
         "bor(r[FLAGS], SOLO)", "r[FLAGS]", "test_i17_recovering_a_batch_does_not_count_and_makes_its_jobs_solo",
         "test_i17_recovering_a_solo_lease_counts"),
    _lua("recovery-to-the-back", "I20 recovered jobs go to the front", "recovery",
         "place(fronts, ", "place(backs, ", "test_i20_recovered_jobs_go_to_the_front_in_their_order"),
    _lua("recovery-forgets-a-cancel", "I36 a cancelled run is never retried", "recovery",
         "has(r[FLAGS], CANCEL) ~= 0", "false", "test_i36_a_recovered_job_whose_cancel_was_requested_is_removed"),
    _lua("no-grace", "I33 workers get a TTL after a pause of the storage", "reap",
         "if is_late and", "if false and", "test_i33_after_a_pause_of_the_storage_workers_get_a_ttl_of_grace"),
    _lua("grace-without-end", "I33 grace comes once between two heartbeats", "reap",
         " and graced == ''", "", "test_i33_grace_comes_once_between_two_heartbeats"),
    _lua("early-promotion", "I34 a scheduled job is never delivered before it is due", "reap",
         "':scheduled', '-inf', now", "':scheduled', '-inf', '+inf'",
         "test_i34_a_job_is_never_delivered_before_it_is_due"),
    # -- enqueue
    _lua("repeat-is-a-duplicate", "I11 repeating an enqueue gives the first answer", "enqueue",
         "r and r[NONCE] == nonce then", "false then", "test_i11_repeating_an_enqueue_gives_the_first_answer"),
    _lua("no-tombstone", "I11 also when the record is gone", "ends",
         "\n  bury(id, r, cause)", "", "test_i11_repeating_an_enqueue_gives_the_first_answer"),
    _lua("no-dedup-window", "I24 a completed id is taken until its dedup window is over", "enqueue",
         " or now < r[STAMP] + r[DEDUP_TTL]", "", "test_i24_a_completed_id_is_new_once_its_dedup_window_is_over"),
    _lua("result-without-end", "I39 the result goes at end + result_ttl", "read",
         "r[STATE] == 'C' and now < r[UNTIL]", "r[STATE] == 'C'", "test_i39_the_result_goes_before_a_longer_record"),
    _lua("expired-is-counted", "I39 what expired is in no count", "ends",
         "count(state, -1)", "count(state, 0)", "test_i39_a_reap_takes_what_expired_from_counts_and_listings"),
    # -- claim and extend
    _lua("claim-without-lease", "I4 processing means exactly one lease", "claim",
         "redis.call('ZADD', tag .. ':processing:' .. worker, unpack(leases))", "",
         "test_i04_a_processing_job_has_exactly_one_lease"),
    _lua("claim-without-token", "I16 tokens rise with every claim", "claim",
         "token + 1", "attempts + 1", "test_i16_tokens_rise_with_every_claim_and_are_never_used_again"),
    _lua("stale-entry-delivered", "I19 a cancelled incarnation is never delivered", "claim",
         " and position == tonumber(positions[i])", "",
         f"{_LONG_LISTS}test_i19_a_stale_entry_of_a_long_list_is_not_delivered"),
    _lua("priorities-upside-down", "I44 a higher priority first", "claim",
         "for prio = 9, 1, -1 do", "for prio = 1, 9 do", "test_i44_a_higher_priority_is_claimed_first"),
    _lua("pause-ignored", "a paused queue hands out nothing", "claim",
         "paused == 1 or ", "", "test_a_paused_queue_hands_out_nothing"),
    _lua("orphans-without-below", "I18 a late answer is never handed back", "extend",
         " and r[SERIAL] < below", "", "test_i18_a_claim_whose_answer_was_lost_is_found_by_the_heartbeat"),
    _lua("orphans-in-flight", "I18 a late answer is never handed back", "extend",
         " and not in_flight[r[SERIAL]]", "", "test_i18_a_claim_whose_answer_was_lost_is_found_by_the_heartbeat"),
    _lua("heartbeat-renews-nothing", "I15 a lease that is extended stays", "extend",
         "redis.call('ZADD', processing, 'GT', unpack(leases))", "",
         "test_i15_a_leased_job_is_not_delivered_again_while_its_lease_is_extended"),
    # -- purge
    _lua("purge-keeps-the-epoch", "a purge makes all but the running absent", "purge",
         "(epoch + 1) % 65536", "epoch", "test_a_purge_makes_all_but_the_running_absent_at_once"),
    # -- rings and replies
    _lua("enqueue-does-not-ring", "I33 whatever makes a job claimable rings", "enqueue",
         "must_ring = queued_now > 0", "", f"{_RINGS}[enqueue]"),
    _lua("return-does-not-ring", "I33 release, retry, promotion and recovery ring", "prelude",
         "must_ring = true", "", f"{_RINGS}[release]"),
    _lua("claim-does-not-ring-again", "I33 a claim rings while work remains", "claim",
         "must_ring = true", "", "test_i33_a_claim_rings_again_while_work_remains"),
    _lua("due-does-not-ring", "I33 a new earliest due time rings", "prelude",
         "ring(':due-wake')", "bor(0, 0)", "test_i33_a_new_earliest_due_time_rings[enqueue]"),
    _lua("cancel-wakes-nobody", "I38 every end wakes every waiter", "ends",
         "reply(id, r, 'G' .. r[NONCE] .. cause)", "", "test_i38_every_end_wakes_every_waiter[cancel]"),
    _lua("second-waiter-dropped", "I38 every end wakes every waiter", "ends",
         "for i = 1, #waiters, 2 do", "for i = 1, 1, 2 do", "test_i38_every_end_wakes_every_waiter[complete]"),
    _lua("leaving-takes-all", "I37 a second waiter stays when the first leaves", "wait",
         "kept[i] == waiter or", "true or", "test_i37_a_second_waiter_stays_when_the_first_leaves"),
)  # fmt: skip
