"""Broken SQL: transitions of the memory and the file storage."""

from __future__ import annotations

from .mutation import Mutation


def _sql(name: str, invariant: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(f"sql-{name}", invariant, f"storage/sql/{file}.sql", old, new, tests)


SQL = (
    # -- settle
    _sql("settle-without-token", "I21 only the present holder settles", "settle",
         "job.nonce = i.nonce AND job.token = i.token", "job.nonce = i.nonce",
         "test_i21_nobody_but_the_present_holder_settles"),
    _sql("settle-without-nonce", "I21 only the present incarnation is settled", "settle",
         "job.nonce = i.nonce AND job.token = i.token", "job.token = i.token",
         "test_i21_a_replaced_incarnation_cannot_settle_its_successor"),
    _sql("settle-forgets-its-answer", "I25 repeating a settle gives the first answer", "settle",
         "AND job.settled_token = i.token", "AND 0", "test_i25_repeating_a_settle_gives_the_first_answer"),
    _sql("release-counts", "I17 a release gives the attempt back", "settle",
         "job.attempts - (i.verb = 'release')", "job.attempts",
         "test_release_gives_the_attempt_back_but_not_the_token"),
    _sql("release-to-the-back", "I20 released jobs go to the front", "settle",
         "ifnull(o.place, q.back + o.n)", "q.back + o.n", "test_i20_released_jobs_go_to_the_front_in_their_order"),
    _sql("retry-without-end", "I27 used up attempts end in the dead letters", "settle",
         "i.verb = 'fail' OR job.attempts >= job.max_attempts", "i.verb = 'fail'",
         "test_i27_used_up_attempts_end_in_the_dead_letters"),
    _sql("cancelled-run-is-retried", "I36 a cancelled run is never retried", "settle",
         "WHEN job.is_cancelling THEN 'absent'", "", "test_i36_a_cancelled_run_is_never_retried"),
    # -- recovery
    _sql("recovery-ignores-attempts", "I17 attempts never exceed max_attempts", "recover",
         "WHEN job.attempts >= job.max_attempts THEN 'failed'", "",
         "test_a_recovery_that_uses_up_the_attempts_says_so"),
    _sql("recovery-counts-a-batch", "I17 recovering a batch does not count", "recover",
         "job.attempts - job.is_batch", "job.attempts",
         "test_i17_recovering_a_batch_does_not_count_and_makes_its_jobs_solo"),
    _sql("recovery-leaves-solo-out", "I17 at most one uncounted crash", "recover",
         "max(job.is_solo, job.is_batch)", "job.is_solo",
         "test_i17_recovering_a_batch_does_not_count_and_makes_its_jobs_solo",
         "test_i17_recovering_a_solo_lease_counts"),
    _sql("recovery-to-the-back", "I20 recovered jobs go to the front", "recover",
         "- r.n\n", "+ 1000 - r.n\n", "test_i20_recovered_jobs_go_to_the_front_in_their_order"),
    _sql("recovery-forgets-a-cancel", "I36 a cancelled run is never retried", "recover",
         "WHEN job.is_cancelling THEN 'absent' WHEN", "WHEN",
         "test_i36_a_recovered_job_whose_cancel_was_requested_is_removed"),
    _sql("no-grace", "I33 workers get a TTL after a pause of the storage", "reap",
         "iif(NEW.now_ms - reaped_ms > 2 * NEW.interval_ms, reaped_ms, NULL)", "NULL",
         "test_i33_after_a_pause_of_the_storage_workers_get_a_ttl_of_grace"),
    _sql("grace-without-end", "I33 grace comes once between two heartbeats", "reap",
         "has_grace = 1", "has_grace = 0", "test_i33_grace_comes_once_between_two_heartbeats"),
    _sql("early-promotion", "I34 a scheduled job is never delivered before it is due", "reap",
         "due_ms <= NEW.now_ms\n", "due_ms IS NOT NULL\n", "test_i34_a_job_is_never_delivered_before_it_is_due"),
    # -- enqueue
    _sql("repeat-is-a-duplicate", "I11 repeating an enqueue gives the first answer", "enqueue",
         "WHERE job.nonce = i.nonce;", "WHERE 0;", "test_i11_repeating_an_enqueue_gives_the_first_answer"),
    _sql("no-tombstone", "I11 also when the record is gone", "remove",
         "FROM gone JOIN job USING (key);\n", "FROM gone JOIN job USING (key) WHERE 0;\n",
         "test_i11_repeating_an_enqueue_gives_the_first_answer"),
    _sql("no-dedup-window", "I24 a completed id is taken until its dedup window is over", "enqueue",
         " OR job.state = 'completed' AND job.dedup_until_ms > NEW.now_ms", "",
         "test_i24_a_completed_id_is_new_once_its_dedup_window_is_over"),
    _sql("result-without-end", "I39 the result goes at end + result_ttl", "enqueue",
         "iif(job.state = 'completed' AND job.result_until_ms > NEW.now_ms, 'completed', 'duplicate')",
         "iif(job.state = 'completed', 'completed', 'duplicate')",
         "test_a_completed_id_without_its_result_is_still_a_duplicate"),
    _sql("expired-is-counted", "I39 what expired is in no count", "remove",
         "n_completed = n_completed - g.completed", "n_completed = n_completed",
         "test_i39_a_reap_takes_what_expired_from_counts_and_listings"),
    # -- claim and extend
    _sql("claim-without-lease", "I4 processing means exactly one lease", "claim",
         "lease_ms = NEW.now_ms + NEW.lease_ms", "lease_ms = NULL",
         "test_i29_a_lease_past_its_deadline_is_recovered"),
    _sql("claim-without-token", "I16 tokens rise with every claim", "claim",
         "token = token + 1", "token = attempts + 1", "test_i16_tokens_rise_with_every_claim_and_are_never_used_again"),
    _sql("priorities-ignored", "I44 a higher priority first", "claim",
         "            ORDER BY priority DESC, position\n", "            ORDER BY position\n",
         "test_i44_a_higher_priority_is_claimed_first"),
    _sql("pause-ignored", "a paused queue hands out nothing", "claim",
         "AND NOT (SELECT is_paused FROM queue WHERE qid = NEW.qid)", "", "test_a_paused_queue_hands_out_nothing"),
    _sql("orphans-without-below", "I18 a late answer is never handed back", "extend",
         " AND serial < NEW.below", "", "test_i18_a_claim_whose_answer_was_lost_is_found_by_the_heartbeat"),
    _sql("orphans-in-flight", "I18 a late answer is never handed back", "extend",
         "AND serial NOT IN (SELECT value FROM json_each(NEW.in_flight))", "",
         "test_i18_a_claim_whose_answer_was_lost_is_found_by_the_heartbeat"),
    _sql("heartbeat-renews-others", "I21 extend renews only the worker's own leases", "extend",
         " AND job.holder = NEW.worker", "",
         "test_i21_an_extension_renews_only_the_leases_that_are_the_workers_own"),
    # -- purge
    _sql("purge-keeps-the-epoch", "a purge makes all but the running absent", "purge",
         "epoch = epoch + 1, ", "", "test_a_purge_makes_all_but_the_running_absent_at_once"),
)  # fmt: skip
