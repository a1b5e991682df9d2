-- What a group, jobs to wait for, or being persistent adds to new jobs. A part of `enqueue`.
-- In:  enqueue_in, enqueue_out; the jobs are there: those with after_ids as waiting.
--      INSERT INTO enqueue_ties (now_ms, qid)
-- Out: enqueue_out: state; change, of the others and ('ready', '').
CREATE TEMP TABLE enqueue_tie (
    n INTEGER PRIMARY KEY, key INTEGER NOT NULL, grp TEXT, after_ids TEXT, due_ms INTEGER, is_persistent INTEGER NOT NULL
);
CREATE TEMP TABLE enqueue_link (
    seq INTEGER PRIMARY KEY, key INTEGER NOT NULL, id TEXT NOT NULL, pred_key INTEGER, state TEXT NOT NULL
);
CREATE INDEX temp.enqueue_link_key ON enqueue_link (key);
CREATE TEMP VIEW enqueue_ties AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP VIEW enqueue_links AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP TRIGGER enqueue_ties_do INSTEAD OF INSERT ON enqueue_ties BEGIN
    DELETE FROM enqueue_tie;
    INSERT INTO enqueue_tie (n, key, grp, after_ids, due_ms, is_persistent)
    SELECT i.n, job.key, json_extract(i.ties, '$.group'), json_extract(i.ties, '$.after'), i.due_ms,
           json_extract(i.ties, '$.is_persistent') IS NOT NULL
    FROM enqueue_in AS i LEFT JOIN enqueue_out AS o USING (n) CROSS JOIN job ON job.qid = NEW.qid AND job.id = i.id
    WHERE o.status IS NULL OR o.status = 'new';
    INSERT INTO tie (key, qid, grp, sequence, line_epoch, not_before_ms)
    SELECT t.key, NEW.qid, iif(t.is_persistent, '', t.grp), iif(t.grp IS NULL, NULL, job.position),
           iif(t.is_persistent OR t.grp IS NOT NULL, job.epoch, NULL),
           iif(t.after_ids IS NULL OR t.due_ms <= NEW.now_ms, NULL, t.due_ms)
    FROM enqueue_tie AS t CROSS JOIN job USING (key)
    WHERE t.grp IS NOT NULL OR t.after_ids IS NOT NULL OR t.is_persistent;
    UPDATE job SET is_solo = 1 WHERE key IN (SELECT key FROM enqueue_tie WHERE is_persistent);
    UPDATE job SET is_delayed = 2, due_ms = {never} WHERE key IN (SELECT key FROM enqueue_tie WHERE after_ids IS NOT NULL);
    UPDATE queue SET is_coupled = 1, n_waiting = n_waiting + (SELECT count(after_ids) FROM enqueue_tie) WHERE qid = NEW.qid;
    INSERT INTO enqueue_links
    SELECT NEW.now_ms, NEW.qid
    WHERE EXISTS (SELECT 1 FROM enqueue_tie WHERE after_ids IS NOT NULL);

    INSERT INTO arrived
    SELECT t.key FROM enqueue_tie AS t CROSS JOIN job USING (key) WHERE t.grp IS NOT NULL AND job.state = 'queued';
    INSERT INTO arrive SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM arrived);
    INSERT INTO change (event, id)
    SELECT 'ready', '' WHERE EXISTS (SELECT 1 FROM enqueue_tie CROSS JOIN job USING (key) WHERE job.state = 'queued');
END;

CREATE TEMP TRIGGER enqueue_links_do INSTEAD OF INSERT ON enqueue_links BEGIN
    -- What stands under the ids now: state 'open', 'met', or why it will never be.
    DELETE FROM enqueue_link;
    INSERT INTO enqueue_link (key, id, pred_key, state)
    SELECT t.key, a.value, job.key,
           CASE WHEN {live} THEN CASE job.state WHEN 'completed' THEN 'met' WHEN 'failed' THEN 'failed' ELSE 'open' END
                WHEN job.key IS NOT NULL THEN iif({unpurged}, 'expired', 'purged')
                ELSE ifnull((
                    SELECT cause FROM tombstone AS g
                    WHERE g.qid = NEW.qid AND g.id = a.value AND g.until_ms > NEW.now_ms ORDER BY g.grave DESC LIMIT 1
                ), 'unknown') END
    FROM enqueue_tie AS t CROSS JOIN json_each(t.after_ids) AS a
    LEFT JOIN job ON job.qid = NEW.qid AND job.id = a.value AND job.key < t.key  -- calls that share the step: no cycle
    WHERE t.after_ids IS NOT NULL
    ORDER BY t.n, a.key;
    -- One that fails at once holds nothing: a pin would give a result its whole time again.
    INSERT INTO link (pred_key, is_met, dep_key)
    SELECT pred_key, state = 'met', key FROM enqueue_link AS l
    WHERE NOT EXISTS (SELECT 1 FROM enqueue_link WHERE key = l.key AND state NOT IN ('open', 'met'));
    INSERT OR IGNORE INTO pinned
    SELECT pred_key FROM enqueue_link AS l
    WHERE state = 'met' AND NOT EXISTS (SELECT 1 FROM enqueue_link WHERE key = l.key AND state NOT IN ('open', 'met'));
    INSERT INTO pin SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM pinned);

    -- Nothing to wait for: as if it had none.
    UPDATE job
    SET state = iif(t.due_ms > NEW.now_ms, 'scheduled', 'queued'), due_ms = iif(t.due_ms > NEW.now_ms, t.due_ms, NULL),
        is_delayed = t.due_ms > NEW.now_ms
    FROM enqueue_tie AS t
    WHERE job.key = t.key AND t.after_ids IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM enqueue_link AS l WHERE l.key = t.key AND l.state <> 'met');
    UPDATE enqueue_out SET state = (SELECT job.state FROM enqueue_tie AS t CROSS JOIN job USING (key) WHERE t.n = enqueue_out.n)
    WHERE status = 'new' AND state = 'waiting';
    UPDATE queue
    SET n_waiting = n_waiting - o.n, n_queued = n_queued + o.queued, n_scheduled = n_scheduled + o.n - o.queued
    FROM (
        SELECT count(*) AS n, count(*) FILTER (WHERE o.state = 'queued') AS queued
        FROM enqueue_tie AS t CROSS JOIN enqueue_out AS o USING (n)
        WHERE o.state <> 'waiting' AND t.after_ids IS NOT NULL
    ) AS o
    WHERE qid = NEW.qid AND o.n > 0;
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s}, o.state, i.id
    FROM enqueue_tie AS t CROSS JOIN enqueue_out AS o USING (n) CROSS JOIN enqueue_in AS i USING (n)
    WHERE {listened} AND t.after_ids IS NOT NULL ORDER BY i.n;

    INSERT OR IGNORE INTO doomed (key, id, cause)
    SELECT key, id, state FROM enqueue_link WHERE state NOT IN ('open', 'met') ORDER BY seq;
    INSERT INTO doom SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM doomed);
    INSERT INTO follow VALUES (NEW.now_ms, NEW.qid);
END;
