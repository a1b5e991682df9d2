-- Holds those back who have come to the queue but stand behind the head of their line. A part of other transitions.
-- In:  arrived (key): jobs of groups that were just queued; removed with it.
--      INSERT INTO arrive (now_ms, qid)
-- Out: the state of those that are blocked; the counters.
CREATE TEMP TABLE arrived (key INTEGER PRIMARY KEY);
CREATE TEMP VIEW arrive AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP TRIGGER arrive_do INSTEAD OF INSERT ON arrive BEGIN
    DELETE FROM arrived WHERE key IN (
        SELECT a.key FROM arrived AS a CROSS JOIN tie AS t USING (key)
        -- Nor does anybody pass one who is blocked, where more may go abreast than before.
        WHERE (
            SELECT count(*) < {abreast} AND NOT total(is_blocked) FROM (
                SELECT (SELECT state = 'blocked' FROM job WHERE job.key = m.key) AS is_blocked FROM tie AS m
                WHERE m.qid = NEW.qid AND m.grp = t.grp AND m.line_epoch = (SELECT epoch FROM queue WHERE qid = NEW.qid)
                  AND m.sequence < t.sequence
                LIMIT {abreast}
            )
        )
    );
    UPDATE job SET state = 'blocked', due_ms = {never} + 1 WHERE key IN (SELECT key FROM arrived);
    UPDATE queue SET n_queued = n_queued - a.n, n_blocked = n_blocked + a.n
    FROM (SELECT count(*) AS n FROM arrived) AS a
    WHERE qid = NEW.qid AND a.n > 0;
    DELETE FROM arrived;
END;
