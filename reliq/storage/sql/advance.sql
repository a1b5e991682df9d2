-- Lets those go who have come to the head of their line: at the back of the queue. A part of `follow`.
-- In:  line (grp): lines that lost somebody; removed with it.
--      INSERT INTO advance (now_ms, qid)
-- Out: change ('ready', '').
CREATE TEMP TABLE advanced (n INTEGER PRIMARY KEY, key INTEGER NOT NULL);
CREATE TEMP VIEW advance AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP TRIGGER advance_do INSTEAD OF INSERT ON advance BEGIN
    DELETE FROM advanced;
    INSERT INTO advanced (key)
    SELECT job.key FROM line AS l CROSS JOIN job ON job.key IN (
        SELECT m.key FROM tie AS m
        WHERE m.qid = NEW.qid AND m.grp = l.grp AND m.line_epoch = (SELECT epoch FROM queue WHERE qid = NEW.qid)
        ORDER BY m.sequence LIMIT {abreast}
    ) CROSS JOIN tie USING (key)
    WHERE +job.state = 'blocked' ORDER BY tie.sequence;
    UPDATE job SET state = 'queued', due_ms = NULL, position = q.back + a.n
    FROM advanced AS a CROSS JOIN queue AS q
    WHERE job.key = a.key AND q.qid = NEW.qid;
    UPDATE queue SET back = back + a.n + 1, n_blocked = n_blocked - a.n, n_queued = n_queued + a.n
    FROM (SELECT count(*) AS n FROM advanced) AS a
    WHERE qid = NEW.qid AND a.n > 0;
    INSERT INTO change (event, id) SELECT 'ready', '' WHERE EXISTS (SELECT 1 FROM advanced);
    DELETE FROM line;
END;
