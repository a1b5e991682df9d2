-- One bounded step of upkeep.
-- In:  INSERT INTO reap (now_ms, qid, interval_ms, limit_n)
-- Out: change (event, id): 'queued' (promoted), 'stalled', 'failed', 'cancelled', 'expired', 'purged';
--      ('ready', ''): something became claimable; reap_out: one row: more, next_due_ms (epoch);
--      reap_tick: the schedules that are due.
CREATE TEMP TABLE reap_out (more INTEGER, next_due_ms INTEGER);
CREATE TEMP TABLE reap_due (key INTEGER PRIMARY KEY, n INTEGER, state TEXT);
CREATE TEMP TABLE reap_tick (name TEXT, spec BLOB, next_ms INTEGER);
CREATE TEMP VIEW reap AS SELECT 0 AS now_ms, 0 AS qid, 0 AS interval_ms, 0 AS limit_n;
CREATE TEMP VIEW reap_upkeep AS SELECT 0 AS now_ms, 0 AS qid, 0 AS limit_n, 0 AS late_ms;

CREATE TEMP TRIGGER reap_do INSTEAD OF INSERT ON reap BEGIN
    DELETE FROM change;
    DELETE FROM reap_out;
    DELETE FROM reap_due;
    DELETE FROM reap_tick;

    -- Promote what is due.
    INSERT INTO reap_due (key, n, state)
    SELECT key, row_number() OVER (ORDER BY due_ms, key), state
    FROM (
        SELECT key, due_ms, state FROM job
        WHERE qid = NEW.qid AND epoch = (SELECT epoch FROM queue WHERE qid = NEW.qid) AND due_ms <= NEW.now_ms
          AND {may:promote}
        ORDER BY due_ms LIMIT NEW.limit_n
    );
    INSERT INTO change (event, id) SELECT 'queued', job.id FROM reap_due AS d CROSS JOIN job USING (key) ORDER BY d.n;
    UPDATE job SET state = 'queued', updated_ms = NEW.now_ms, due_ms = NULL, position = q.back + d.n
    FROM reap_due AS d CROSS JOIN queue AS q
    WHERE job.key = +d.key AND q.qid = NEW.qid;
    UPDATE queue
    SET back = back + d.n + 1, n_queued = n_queued + d.n, n_scheduled = n_scheduled - d.scheduled,
        n_failing = n_failing - d.failing
    FROM (
        SELECT count(*) AS n, count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
               count(*) FILTER (WHERE state = 'failing') AS failing
        FROM reap_due
    ) AS d
    WHERE qid = NEW.qid AND d.n > 0;
    INSERT INTO arrived SELECT d.key FROM reap_due AS d CROSS JOIN tie USING (key) WHERE tie.grp <> '';
    INSERT INTO arrive SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM arrived);
    INSERT INTO change (event, id)
    SELECT 'ready', '' WHERE EXISTS (SELECT 1 FROM reap_due AS d CROSS JOIN job USING (key) WHERE job.state = 'queued');
    INSERT INTO reap_out (more) SELECT count(*) >= NEW.limit_n FROM reap_due;

    -- The rest twice per interval, whoever calls; at once while it has more to do or the clock went back.
    INSERT INTO reap_upkeep (now_ms, qid, limit_n, late_ms)
    SELECT NEW.now_ms, NEW.qid, NEW.limit_n,
           iif(NEW.now_ms - reaped_ms > 2 * NEW.interval_ms, reaped_ms, NULL)
    FROM queue
    WHERE qid = NEW.qid
      AND (2 * (NEW.now_ms - reaped_ms) >= NEW.interval_ms OR reaped_ms > NEW.now_ms OR has_upkeep);

    INSERT INTO follow SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM cascade WHERE qid = NEW.qid);
    UPDATE reap_out SET more = more OR EXISTS (SELECT 1 FROM cascade WHERE qid = NEW.qid);

    INSERT INTO reap_tick
    SELECT name, spec, next_ms FROM schedule WHERE qid = NEW.qid AND next_ms <= NEW.now_ms
    ORDER BY next_ms, name LIMIT {max_ticks};
    UPDATE reap_out SET next_due_ms = (
        SELECT min(at_ms) FROM (
            SELECT min(due_ms) AS at_ms FROM job
            WHERE qid = NEW.qid AND epoch = (SELECT epoch FROM queue WHERE qid = NEW.qid) AND due_ms < {never}
            UNION ALL SELECT min(next_ms) FROM schedule WHERE qid = NEW.qid AND next_ms > NEW.now_ms
        )
    );
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s}, event, id FROM change WHERE {listened} AND {told} ORDER BY n;
END;

-- late_ms: when the previous upkeep ran, if that is too long ago to blame the workers, else NULL.
CREATE TEMP TRIGGER reap_upkeep_do INSTEAD OF INSERT ON reap_upkeep BEGIN
    -- Nobody watched: who was alive then gets one ttl, once between two of its heartbeats.
    UPDATE job SET lease_ms = NEW.now_ms + w.ttl_ms
    FROM worker AS w
    WHERE NEW.late_ms IS NOT NULL AND job.qid = NEW.qid AND job.state = 'processing'
      AND job.lease_ms > NEW.late_ms AND job.lease_ms < NEW.now_ms + w.ttl_ms
      AND w.qid = NEW.qid AND w.worker = job.holder AND w.deadline_ms > NEW.late_ms AND NOT w.has_grace;
    UPDATE worker SET deadline_ms = max(deadline_ms, NEW.now_ms + ttl_ms), has_grace = 1
    WHERE NEW.late_ms IS NOT NULL AND qid = NEW.qid AND deadline_ms > NEW.late_ms AND NOT has_grace;

    INSERT INTO stalled (key)
    SELECT key FROM job WHERE qid = NEW.qid AND {may:recover} AND lease_ms <= NEW.now_ms
    ORDER BY lease_ms LIMIT NEW.limit_n;
    INSERT OR IGNORE INTO stalled (key)
    SELECT job.key FROM worker AS w CROSS JOIN job ON job.qid = w.qid AND job.holder = w.worker
    WHERE w.qid = NEW.qid AND w.deadline_ms <= NEW.now_ms AND job.{may:recover}
    -- What was served last goes first, so that the next step comes to stand before it.
    ORDER BY job.position DESC LIMIT NEW.limit_n;
    UPDATE reap_out SET more = more OR (SELECT count(*) >= NEW.limit_n FROM stalled);
    INSERT INTO recover SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM stalled);
    DELETE FROM worker
    WHERE qid = NEW.qid AND deadline_ms <= NEW.now_ms AND NOT EXISTS (
        SELECT 1 FROM job WHERE job.qid = NEW.qid AND job.holder = worker.worker AND job.state = 'processing'
    );

    INSERT INTO sweep VALUES (NEW.now_ms, NEW.qid, NEW.limit_n);
    UPDATE reap_out SET more = more OR EXISTS (
        SELECT 1 FROM job
        WHERE qid = NEW.qid AND epoch = (SELECT epoch FROM queue WHERE qid = NEW.qid) AND sweep_ms <= NEW.now_ms
    ) OR EXISTS (SELECT 1 FROM tombstone WHERE qid = NEW.qid AND until_ms <= NEW.now_ms);
    -- What a purge left, by the three indexes in which it can stand.
    UPDATE reap_out SET more = more OR {purge_left};

    -- Nobody else looks after what deleted queues left.
    DELETE FROM tombstone WHERE grave IN (
        SELECT t.grave FROM queue AS q CROSS JOIN tombstone AS t ON t.qid = q.qid AND t.until_ms <= NEW.now_ms
        WHERE NOT q.is_listed LIMIT NEW.limit_n
    );
    DELETE FROM event WHERE seq IN (SELECT seq FROM event WHERE at_s < {clock_s} - 60 LIMIT NEW.limit_n);
    UPDATE queue
    SET reaped_ms = NEW.now_ms, has_upkeep = r.more, is_listed = iif(is_listed = 2 AND NOT r.more, 0, is_listed)
    FROM reap_out AS r
    WHERE qid = NEW.qid;
END;
