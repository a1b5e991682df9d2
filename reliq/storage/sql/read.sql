-- The questions. Each section is one statement, run by its name with named parameters.

-- name: open_queue
-- On a queue of groups the ends of runs concern others, whatever was enqueued.
INSERT INTO queue (name, is_coupled) VALUES (:name, substr(:name, -5) = '.fifo')
ON CONFLICT DO NOTHING;

-- name: find_queue
SELECT qid FROM queue WHERE name = :name;

-- name: snapshots
-- ids: JSON [id, ...]; nonce: of the one incarnation asked for, x'' = whichever stands there.
SELECT i.key AS n, i.value AS id, ifnull({live} AND (:nonce = x'' OR job.nonce = :nonce), 0) AS is_live,
       CASE WHEN {live} AND (:nonce = x'' OR job.nonce = :nonce) THEN ''
            WHEN job.key IS NOT NULL AND (:nonce = x'' OR job.nonce = :nonce) THEN iif({unpurged}, 'expired', 'purged')
            ELSE ifnull((
                SELECT cause FROM tombstone AS t
                WHERE t.qid = :qid AND t.id = i.value AND t.until_ms > :now_ms AND (:nonce = x'' OR t.nonce = :nonce)
                ORDER BY t.grave DESC LIMIT 1
            ), 'unknown') END AS cause,
       job.state, job.nonce, job.created_ms, job.updated_ms, job.attempts, job.max_attempts, job.token, job.priority,
       iif(job.due_ms < {never}, job.due_ms, NULL) AS due_ms, iif(job.expires_ms < {never}, job.expires_ms, NULL) AS expires_ms,
       job.holder, job.is_cancelling, job.is_exhausted,
       iif(:payload AND job.result_until_ms > :now_ms, job.result, NULL) AS result,
       (SELECT json_group_array(json_array(at_ms, worker, attempt, hex(error)))
        FROM (SELECT at_ms, worker, attempt, error FROM error WHERE error.key = job.key ORDER BY token)) AS errors,
       iif(:payload, ifnull(job.message, (SELECT message FROM message WHERE message.key = job.key)), NULL) AS message,
       nullif(tie.grp, ''), tie.sequence, tie.grp IS '', tie.progress
FROM json_each(:ids) AS i LEFT JOIN job ON job.qid = :qid AND job.id = i.value LEFT JOIN tie ON tie.key = job.key
ORDER BY i.key;

-- name: unfinished
-- ids: JSON [id, ...]; those that somebody may go on waiting for.
SELECT job.id, job.nonce FROM json_each(:ids) AS i CROSS JOIN job ON job.qid = :qid AND job.id = i.value
WHERE job.expires_ms IS NULL AND {live};

-- name: counts
SELECT n_waiting, n_scheduled, n_queued + n_blocked, n_processing, n_failing, n_completed, n_failed FROM queue WHERE qid = :qid;

-- name: is_paused
SELECT is_paused FROM queue WHERE qid = :qid;

-- name: queues
SELECT name FROM queue WHERE is_listed ORDER BY name;

-- name: has_work
-- Claimable now; while a token of the rate limit is missing, whoever claimed last knows when to look again.
SELECT n_queued > 0 AND NOT is_paused AND (NOT is_limited OR (SELECT {open} FROM limits WHERE qid = :qid))
FROM queue WHERE qid = :qid;

-- name: backlog
SELECT iif(is_paused OR (SELECT {token_us} > 0 FROM limits WHERE qid = :qid AND rate IS NOT NULL), 0, n_queued + n_blocked + n_waiting + n_failing)
       + n_processing - iif(is_coupled, (
           SELECT count(*) FROM tie CROSS JOIN job USING (key)
           WHERE tie.qid = :qid AND tie.grp = '' AND tie.line_epoch = queue.epoch
             AND (job.state = 'processing' OR NOT is_paused
                  AND NOT ifnull((SELECT {token_us} > 0 FROM limits WHERE qid = :qid AND rate IS NOT NULL), 0))
       ), 0)
FROM queue WHERE qid = :qid;

-- name: limits
SELECT rate, rate_ms, max_concurrency, max_length, group_concurrency FROM limits WHERE qid = :qid;

-- name: schedules
SELECT name, spec, next_ms FROM schedule WHERE qid = :qid ORDER BY name;

-- name: next_due
SELECT min(at_ms) FROM (
    SELECT min(due_ms) AS at_ms FROM job
    WHERE qid = :qid AND epoch = (SELECT epoch FROM queue WHERE qid = :qid) AND due_ms < {never}
    UNION ALL SELECT min(next_ms) FROM schedule WHERE qid = :qid
);

-- name: workers
SELECT w.worker, q.name, w.runners, w.deadline_ms,
       (SELECT count(*) FROM job WHERE job.qid = w.qid AND job.holder = w.worker AND job.state = 'processing')
FROM worker AS w JOIN queue AS q USING (qid) WHERE :qid IS NULL OR w.qid = :qid ORDER BY q.name, w.worker;

-- name: list_queued
SELECT id, priority, position FROM job
WHERE qid = :qid AND epoch = (SELECT epoch FROM queue WHERE qid = :qid) AND state = 'queued'
  AND (:a IS NULL OR priority < :a OR priority = :a AND position > :b)
ORDER BY priority DESC, position LIMIT :limit_n;

-- name: list_blocked
-- Behind those of list_queued, as if of priority -1.
SELECT id, -1, key FROM job
WHERE qid = :qid AND epoch = (SELECT epoch FROM queue WHERE qid = :qid) AND due_ms = {never} + 1 AND state = 'blocked'
  AND (:a IS NULL OR :a >= 0 OR key > :b)
ORDER BY key LIMIT :limit_n;

-- name: list_waiting
SELECT id, 0, key FROM job
WHERE qid = :qid AND epoch = (SELECT epoch FROM queue WHERE qid = :qid) AND due_ms = {never} AND state = 'waiting'
  AND (:b IS NULL OR key > :b)
ORDER BY key LIMIT :limit_n;

-- name: list_due
SELECT id, due_ms, key FROM job
WHERE qid = :qid AND epoch = (SELECT epoch FROM queue WHERE qid = :qid) AND due_ms < {never} AND state = :state
  AND (:a IS NULL OR (due_ms, key) > (:a, :b))
ORDER BY due_ms, key LIMIT :limit_n;

-- name: list_processing
SELECT id, lease_ms, key FROM job
WHERE qid = :qid AND state = 'processing' AND (:a IS NULL OR (lease_ms, key) > (:a, :b))
ORDER BY lease_ms, key LIMIT :limit_n;

-- name: list_completed
SELECT id, sweep_ms, key FROM job
WHERE qid = :qid AND epoch = (SELECT epoch FROM queue WHERE qid = :qid) AND sweep_ms IS NOT NULL
  AND state = 'completed' AND {live} AND (:a IS NULL OR (sweep_ms, key) > (:a, :b))
ORDER BY sweep_ms, key LIMIT :limit_n;

-- name: list_failed
SELECT id, updated_ms, key FROM job
WHERE qid = :qid AND epoch = (SELECT epoch FROM queue WHERE qid = :qid) AND state = 'failed'
  AND {live} AND (:a IS NULL OR (updated_ms, key) > (:a, :b))
ORDER BY updated_ms, key LIMIT :limit_n;

-- name: listen
UPDATE queue SET listen_until_s = max(listen_until_s, {clock_s} + :seconds) WHERE qid = :qid;

-- name: trim_events
DELETE FROM event WHERE at_s < {clock_s} - :seconds;

-- name: last_event
SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'event';

-- name: events
SELECT event.seq, queue.name, event.name, event.id FROM event JOIN queue USING (qid)
WHERE event.seq > :seq ORDER BY event.seq LIMIT 1000;
