-- Cancels jobs that do not run; asks the holders of those that do, if wanted.
-- In:  INSERT INTO cancel (now_ms, qid, ids, running)     ids: JSON [[id, hex of nonce or null], ...], each once
-- Out: cancel_out per n: status of CancelResult.
CREATE TEMP TABLE cancel_out (n INTEGER PRIMARY KEY, key INTEGER, status TEXT NOT NULL);
CREATE TEMP VIEW cancel AS SELECT 0 AS now_ms, 0 AS qid, '' AS ids, 0 AS running;
CREATE TEMP TRIGGER cancel_do INSTEAD OF INSERT ON cancel BEGIN
    DELETE FROM cancel_out;
    DELETE FROM change;
    INSERT INTO cancel_out (n, key, status)
    SELECT i.key, job.key,
           CASE WHEN NOT ifnull({live}, 0) THEN 'not_found'
                WHEN hex(job.nonce) <> json_extract(i.value, '$[1]') THEN 'not_found'
                WHEN NOT job.{may:cancel} THEN job.state
                WHEN job.state <> 'processing' THEN 'cancelled'
                WHEN NEW.running THEN 'cancelling'
                ELSE 'processing' END
    FROM json_each(NEW.ids) AS i LEFT JOIN job ON job.qid = NEW.qid AND job.id = json_extract(i.value, '$[0]');
    UPDATE job SET is_cancelling = 1 WHERE key IN (SELECT key FROM cancel_out WHERE status = 'cancelling');
    INSERT INTO change (event, id)
    SELECT o.status, job.id FROM cancel_out AS o CROSS JOIN job USING (key) WHERE o.status IN ('cancelled', 'cancelling')
    ORDER BY o.n;
    INSERT INTO gone (key, cause) SELECT key, 'cancelled' FROM cancel_out WHERE status = 'cancelled';
    INSERT INTO remove SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM gone);
    INSERT INTO sweep SELECT NEW.now_ms, NEW.qid, 2 * count(*) FROM cancel_out;
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s}, event, id FROM change WHERE {listened} AND {told} ORDER BY n;
END;
