-- What must hold at any moment, as questions for what breaks it: one statement each, run by its name on one
-- snapshot. Each answers with rows (queue, id, what is wrong).

-- name: counters
SELECT q.name, '', s.value || ' counts ' || s.n || ' but holds ' || ifnull(c.n, 0)
FROM queue AS q CROSS JOIN (
    SELECT value, qid, CASE value
           WHEN 'waiting' THEN n_waiting WHEN 'scheduled' THEN n_scheduled WHEN 'queued' THEN n_queued
           WHEN 'processing' THEN n_processing WHEN 'failing' THEN n_failing WHEN 'completed' THEN n_completed
           WHEN 'failed' THEN n_failed WHEN 'blocked' THEN n_blocked END AS n
    FROM json_each(:states) CROSS JOIN queue
) AS s USING (qid)
LEFT JOIN (
    SELECT job.qid, job.state, count(*) AS n FROM job JOIN queue USING (qid)
    WHERE job.state = 'processing' OR job.epoch = queue.epoch GROUP BY job.qid, job.state
) AS c ON c.qid = q.qid AND c.state = s.value
WHERE ifnull(c.n, 0) <> s.n;

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
FROM job LEFT JOIN queue USING (qid)
WHERE CASE state WHEN 'waiting' THEN due_ms IS NOT {never} WHEN 'blocked' THEN due_ms IS NOT {never} + 1
                 WHEN 'scheduled' THEN due_ms IS NULL WHEN 'failing' THEN due_ms IS NULL ELSE due_ms IS NOT NULL END;

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
UNION ALL SELECT '', key, 'is a tie of no job' FROM tie WHERE key NOT IN (SELECT key FROM job)
UNION ALL SELECT '', dep_key, 'is a link of no job' FROM link WHERE dep_key NOT IN (SELECT key FROM job)
UNION ALL SELECT '', key, 'is a cascade to no job' FROM cascade WHERE key NOT IN (SELECT pred_key FROM link WHERE is_met = 0)
UNION ALL SELECT '', name, 'is a schedule of no queue' FROM schedule WHERE qid NOT IN (SELECT qid FROM queue)
UNION ALL SELECT '', qid, 'is a limit of no queue' FROM limits WHERE qid NOT IN (SELECT qid FROM queue)
UNION ALL SELECT '', worker, 'is a worker of no queue' FROM worker WHERE qid NOT IN (SELECT qid FROM queue)
UNION ALL SELECT '', id, 'is a tombstone of no queue' FROM tombstone WHERE qid NOT IN (SELECT qid FROM queue);

-- name: tombstones
SELECT queue.name, t.id, 'lives and has a tombstone' FROM tombstone AS t JOIN job USING (qid, id, nonce) JOIN queue USING (qid);

-- name: epochs
SELECT queue.name, job.id, 'is of a purge that has not been' FROM job JOIN queue USING (qid) WHERE job.epoch > queue.epoch;

-- name: lines
SELECT queue.name, job.id, 'is at the head of its group but blocked' FROM queue CROSS JOIN job USING (qid) JOIN tie USING (key)
WHERE job.state = 'blocked' AND job.epoch = queue.epoch AND NOT EXISTS (
    SELECT 1 FROM tie AS m
    WHERE m.qid = tie.qid AND m.grp = tie.grp AND m.line_epoch = queue.epoch AND m.sequence < tie.sequence
)
UNION ALL
SELECT queue.name, job.id, iif(tie.line_epoch IS NULL, 'stands in no line but is ', 'stands in a line but is ') || job.state
FROM job JOIN queue USING (qid) JOIN tie USING (key)
WHERE tie.grp IS NOT NULL AND (tie.line_epoch IS NULL) <> (job.expires_ms IS NOT NULL)
UNION ALL
SELECT queue.name, job.id, 'is blocked but in no group' FROM job JOIN queue USING (qid) LEFT JOIN tie USING (key)
WHERE job.state = 'blocked' AND tie.grp IS NULL
UNION ALL
SELECT queue.name, '', 'is not coupled but has jobs with ties' FROM queue
WHERE NOT is_coupled AND (
    EXISTS (SELECT 1 FROM tie WHERE tie.qid = queue.qid AND grp IS NOT NULL)
    OR EXISTS (SELECT 1 FROM job WHERE job.qid = queue.qid AND state = 'waiting')
);

-- name: links
SELECT queue.name, job.id, 'waits for nothing' FROM job JOIN queue USING (qid)
WHERE job.state = 'waiting' AND job.epoch = queue.epoch
  AND NOT EXISTS (SELECT 1 FROM link WHERE dep_key = job.key AND is_met = 0)
UNION ALL
SELECT queue.name, job.id, 'waits for others but is ' || job.state FROM job JOIN queue USING (qid)
WHERE job.state <> 'waiting' AND job.epoch = queue.epoch
  AND EXISTS (SELECT 1 FROM link WHERE dep_key = job.key AND (is_met = 0 OR job.expires_ms IS NOT NULL))
UNION ALL
SELECT queue.name, job.id, 'waits for a job that has ended' FROM link JOIN job ON job.key = dep_key JOIN queue USING (qid)
WHERE is_met = 0 AND job.epoch = queue.epoch AND NOT EXISTS (SELECT 1 FROM cascade WHERE cascade.key = pred_key)
  AND NOT EXISTS (SELECT 1 FROM job AS pred WHERE pred.key = pred_key AND pred.expires_ms IS NULL)
UNION ALL
SELECT queue.name, job.id, iif(expires_ms = {never}, 'is pinned by nobody', 'is not pinned but was waited for')
FROM job JOIN queue USING (qid)
WHERE job.state = 'completed' AND job.epoch = queue.epoch
  AND (expires_ms = {never}) <> EXISTS (SELECT 1 FROM link WHERE pred_key = job.key);

-- name: settings
SELECT name, '', 'says otherwise about limits than they are' FROM queue LEFT JOIN limits USING (qid)
WHERE is_limited <> (rate IS NOT NULL OR max_concurrency IS NOT NULL) OR is_bounded <> (max_length IS NOT NULL)
   OR max_concurrency IS NOT NULL AND NOT is_coupled;
