-- Takes jobs that have ended out of their lines and off the links between jobs. A part of `follow` and `carry`.
-- In:  ended; removed with it.
--      INSERT INTO unlink (now_ms, qid)
-- Out: line: groups whose line lost somebody; cascade: those that others still wait for.
CREATE TEMP TABLE line (grp TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TEMP TABLE unpinned (key INTEGER PRIMARY KEY);
CREATE TEMP VIEW unlink AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP VIEW unlink_links AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP TRIGGER unlink_do INSTEAD OF INSERT ON unlink BEGIN
    UPDATE tie SET line_epoch = NULL WHERE key IN (SELECT key FROM ended WHERE grp IS NOT NULL);
    INSERT OR IGNORE INTO line SELECT grp FROM ended WHERE grp <> '';
    INSERT INTO unlink_links SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM link);
    DELETE FROM ended;
END;
CREATE TEMP TRIGGER unlink_links_do INSTEAD OF INSERT ON unlink_links BEGIN
    -- What pinned its predecessors does no more.
    INSERT OR IGNORE INTO unpinned SELECT l.pred_key FROM ended AS e CROSS JOIN link AS l ON l.dep_key = e.key;
    DELETE FROM link WHERE dep_key IN (SELECT key FROM ended);
    UPDATE job
    SET result_until_ms = iif(result_until_ms = {never}, NEW.now_ms + result_ttl_ms, result_until_ms),
        dedup_until_ms = iif({is_fifo}, created_ms, updated_ms) + dedup_ttl_ms,
        expires_ms = max(iif(result_until_ms = {never}, NEW.now_ms + result_ttl_ms, NEW.now_ms),
                         iif({is_fifo}, created_ms, updated_ms) + dedup_ttl_ms),
        sweep_ms = iif(result_until_ms = {never}, NEW.now_ms + result_ttl_ms,
                       max(NEW.now_ms, iif({is_fifo}, created_ms, updated_ms) + dedup_ttl_ms))
    WHERE key IN (SELECT key FROM unpinned) AND expires_ms = {never}
      AND NOT EXISTS (SELECT 1 FROM link WHERE pred_key = job.key);
    DELETE FROM unpinned;

    INSERT OR IGNORE INTO cascade (key, qid, id, cause)
    SELECT key, NEW.qid, id, cause FROM ended
    WHERE EXISTS (SELECT 1 FROM link WHERE pred_key = ended.key AND is_met = 0);
    DELETE FROM link
    WHERE is_met = 1 AND pred_key IN (SELECT key FROM ended WHERE cause NOT IN ('completed', 'failed'));
    INSERT INTO pinned SELECT key FROM ended
    WHERE cause = 'completed' AND EXISTS (SELECT 1 FROM link WHERE pred_key = ended.key);
    INSERT INTO pin SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM pinned);
END;
