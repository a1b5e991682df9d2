-- What must hold at any moment, as questions for what breaks it: one statement each, run by its name on one
-- snapshot. Each answers with rows (queue, id, what is wrong).

-- name: counters
SELECT q.name, '', s.value || ' counts ' || CASE s.value
           WHEN 'waiting' THEN q.n_waiting WHEN 'scheduled' THEN q.n_scheduled WHEN 'queued' THEN q.n_queued
           WHEN 'processing' THEN q.n_processing WHEN 'failing' THEN q.n_failing WHEN 'completed' THEN q.n_completed
           WHEN 'failed' THEN q.n_failed END || ' but holds ' || ifnull(c.n, 0)
FROM queue AS q CROSS JOIN json_each(:states) AS s
LEFT JOIN (
    SELECT job.qid, job.state, count(*) AS n FROM job JOIN queue USING (qid)
    WHERE job.state = 'processing' OR job.epoch = queue.epoch GROUP BY job.qid, job.state
) AS c ON c.qid = q.qid AND c.state = s.value
WHERE ifnull(c.n, 0) <> CASE s.value
           WHEN 'waiting' THEN q.n_waiting WHEN 'scheduled' THEN q.n_scheduled WHEN 'queued' THEN q.n_queued
           WHEN 'processing' THEN q.n_processing WHEN 'failing' THEN q.n_failing WHEN 'completed' THEN q.n_completed
           WHEN 'failed' THEN q.n_failed END;

-- name: states
SELECT queue.name, job.id, 'is in an unknown state ' || quote(state) FROM job LEFT JOIN queue USING (qid)
WHERE state NOT IN (SELECT value FROM json_each(:states));

-- name: positions
SELECT queue.name, job.id, 'is queued outside of its queue, at ' || position FROM job JOIN queue USING (qid)
WHERE state = 'queued' AND job.epoch = queue.epoch AND NOT (position >= front AND position < back)
UNION ALL
SELECT queue.name, min(job.id), 'shares its position ' || position || ' with ' || (count(*) - 1) || ' more'
FROM job JOIN queue USING (qid) WHERE state = 'queued' AND job.epoch = queue.epoch
GROUP BY qid, priority, position HAVING count(*) > 1;

-- name: due_entries
SELECT queue.name, job.id, iif(due_ms IS NULL, 'is ' || state || ' without a due time', 'has a due time but is ' || state)
FROM job LEFT JOIN queue USING (qid) WHERE (due_ms IS NOT NULL) <> (state IN ('scheduled', 'failing'));

-- name: leases
SELECT queue.name, job.id, iif(state = 'processing', 'is processing without a whole lease', 'has a lease but is ' || state)
FROM job LEFT JOIN queue USING (qid)
WHERE iif(state = 'processing', holder IS NULL OR serial IS NULL OR lease_ms IS NULL OR token < 1,
          holder IS NOT NULL OR serial IS NOT NULL OR lease_ms IS NOT NULL OR is_batch)
UNION ALL
SELECT queue.name, job.id, 'is held by ' || holder || ', which is not registered' FROM job JOIN queue USING (qid)
WHERE state = 'processing' AND NOT EXISTS (SELECT 1 FROM worker AS w WHERE w.qid = job.qid AND w.worker = job.holder);

-- name: attempts
SELECT queue.name, job.id, 'ran ' || attempts || ' of ' || max_attempts || ' times in ' || token || ' claims'
FROM job LEFT JOIN queue USING (qid) WHERE attempts NOT BETWEEN 0 AND max_attempts OR attempts > token;

-- name: ends
SELECT queue.name, job.id, iif(state IN ('completed', 'failed'), 'has ended but has no end of life', 'goes on but has an end of life')
FROM job LEFT JOIN queue USING (qid)
WHERE iif(state IN ('completed', 'failed'), expires_ms IS NULL OR sweep_ms IS NULL,
          expires_ms IS NOT NULL OR sweep_ms IS NOT NULL OR result IS NOT NULL)
   OR (state = 'completed') <> (dedup_until_ms IS NOT NULL) AND state <> 'failed';

-- name: messages
SELECT queue.name, job.id, iif(job.message IS NULL, 'has lost its message', 'has two messages')
FROM job LEFT JOIN queue USING (qid) LEFT JOIN message AS m USING (key) WHERE (job.message IS NULL) = (m.key IS NULL)
UNION ALL
SELECT queue.name, job.id, 'has a message of another length'
FROM job LEFT JOIN queue USING (qid) LEFT JOIN message AS m USING (key)
WHERE size <> ifnull(length(job.message), length(m.message));

-- name: orphans
SELECT '', job.id, 'belongs to no queue' FROM job WHERE qid NOT IN (SELECT qid FROM queue)
UNION ALL SELECT '', key, 'is a message of no job' FROM message WHERE key NOT IN (SELECT key FROM job)
UNION ALL SELECT '', key, 'is an error of no job' FROM error WHERE key NOT IN (SELECT key FROM job)
UNION ALL SELECT '', worker, 'is a worker of no queue' FROM worker WHERE qid NOT IN (SELECT qid FROM queue)
UNION ALL SELECT '', id, 'is a tombstone of no queue' FROM tombstone WHERE qid NOT IN (SELECT qid FROM queue);

-- name: tombstones
SELECT queue.name, t.id, 'lives and has a tombstone' FROM tombstone AS t JOIN job USING (qid, id, nonce) JOIN queue USING (qid);

-- name: epochs
SELECT queue.name, job.id, 'is of a purge that has not been' FROM job JOIN queue USING (qid) WHERE job.epoch > queue.epoch;
