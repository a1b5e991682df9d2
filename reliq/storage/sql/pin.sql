-- Keeps completed records, with their results, until the last of their dependents has ended. A part of other transitions.
-- In:  pinned (key); removed with it.
--      INSERT INTO pin (now_ms, qid)
-- Out: nothing.
CREATE TEMP TABLE pinned (key INTEGER PRIMARY KEY);
CREATE TEMP VIEW pin AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP TRIGGER pin_do INSTEAD OF INSERT ON pin BEGIN
    -- A result that is over stays so.
    UPDATE job
    SET result = iif(result_until_ms > NEW.now_ms, result, NULL),
        result_until_ms = iif(result_until_ms > NEW.now_ms, {never}, result_until_ms),
        dedup_until_ms = {never}, expires_ms = {never}, sweep_ms = {never}
    WHERE key IN (SELECT key FROM pinned) AND expires_ms <> {never};
    DELETE FROM pinned;
END;
