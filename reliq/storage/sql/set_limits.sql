-- Sets what a queue's users are held to.
-- In:  INSERT INTO set_limits (now_ms, qid, rate, rate_ms, max_concurrency, max_length, group_concurrency, only_new)
--      All of them as without limits: there are none then.
-- Out: the row in `limits`, unless only_new and there is one.
CREATE TEMP VIEW set_limits AS
SELECT 0 AS now_ms, 0 AS qid, 0 AS rate, 0 AS rate_ms, 0 AS max_concurrency, 0 AS max_length, 0 AS group_concurrency,
       0 AS only_new;
CREATE TEMP TRIGGER set_limits_do INSTEAD OF INSERT ON set_limits BEGIN
    INSERT INTO limits (qid, rate, rate_ms, max_concurrency, max_length, group_concurrency)
    SELECT NEW.qid, NEW.rate, NEW.rate_ms, NEW.max_concurrency, NEW.max_length,
           iif({is_fifo}, 1, NEW.group_concurrency)
    WHERE NOT (NEW.only_new AND EXISTS (SELECT 1 FROM limits WHERE qid = NEW.qid))
    ON CONFLICT (qid) DO UPDATE
    SET rate = excluded.rate, rate_ms = excluded.rate_ms, max_concurrency = excluded.max_concurrency,
        max_length = excluded.max_length, group_concurrency = excluded.group_concurrency,
        -- What an older rate left is worth one token of the new one at most.
        bucket_us = iif(rate IS excluded.rate AND rate_ms = excluded.rate_ms, bucket_us, min(
            bucket_us, NEW.now_ms * 1000 + ifnull((excluded.rate_ms * 1000 + excluded.rate - 1) / excluded.rate, 0)
        ));
    DELETE FROM limits
    WHERE qid = NEW.qid AND rate IS NULL AND max_concurrency IS NULL AND max_length IS NULL AND group_concurrency = 1;
    UPDATE queue
    SET is_limited = ifnull(l.rate, l.max_concurrency) IS NOT NULL, is_bounded = l.max_length IS NOT NULL,
        is_coupled = is_coupled OR l.max_concurrency IS NOT NULL
    FROM (SELECT 1) LEFT JOIN limits AS l ON l.qid = NEW.qid
    WHERE queue.qid = NEW.qid;
END;
