-- The tables of a store, the same in memory and in a file. Times are milliseconds since the
-- epoch (_ms), states their names, ids compared byte by byte, bytes BLOBs.

CREATE TABLE queue (
    qid             INTEGER PRIMARY KEY,
    name            TEXT NOT NULL UNIQUE,
    is_listed       INTEGER NOT NULL DEFAULT 0,  -- something was enqueued to it; 2: deleted, not yet carried out
    is_paused       INTEGER NOT NULL DEFAULT 0,
    epoch           INTEGER NOT NULL DEFAULT 1,  -- raised by purge; see `{live}` in statements.py
    front           INTEGER NOT NULL DEFAULT 0,  -- a job put at the front gets front - 1, - 2, ...
    back            INTEGER NOT NULL DEFAULT 0,  -- a job put at the back gets back, + 1, ...
    reaped_ms       INTEGER NOT NULL DEFAULT 0,  -- when upkeep last ran, 0 = never
    has_upkeep      INTEGER NOT NULL DEFAULT 0,  -- the last upkeep hit its bound
    listen_until_s  INTEGER NOT NULL DEFAULT 0,  -- events are written until then, by the system's clock
    n_waiting       INTEGER NOT NULL DEFAULT 0,  -- jobs per state, kept by every transition
    n_scheduled     INTEGER NOT NULL DEFAULT 0,
    n_queued        INTEGER NOT NULL DEFAULT 0,
    n_processing    INTEGER NOT NULL DEFAULT 0,
    n_failing       INTEGER NOT NULL DEFAULT 0,
    n_completed     INTEGER NOT NULL DEFAULT 0,
    n_failed        INTEGER NOT NULL DEFAULT 0,
    n_blocked       INTEGER NOT NULL DEFAULT 0,
    is_limited      INTEGER NOT NULL DEFAULT 0,  -- `limits` has a rate or a concurrency for it
    is_bounded      INTEGER NOT NULL DEFAULT 0,  -- `limits` has a length for it
    is_coupled      INTEGER NOT NULL DEFAULT 0   -- the end of a run may concern other jobs: see follow.sql
);

-- What a queue's users are held to; no row = nothing.
CREATE TABLE limits (
    qid             INTEGER PRIMARY KEY,
    rate            INTEGER,
    rate_ms         INTEGER NOT NULL,
    max_concurrency INTEGER,
    max_length      INTEGER,
    group_concurrency INTEGER NOT NULL,
    bucket_us       INTEGER NOT NULL DEFAULT 0   -- see `token_us` in statements.py
);

CREATE TABLE job (
    key             INTEGER PRIMARY KEY,
    qid             INTEGER NOT NULL,
    id              TEXT NOT NULL,
    nonce           BLOB NOT NULL,               -- names the incarnation
    state           TEXT NOT NULL,               -- 'blocked': queued, behind the head of its group
    epoch           INTEGER NOT NULL,            -- of the queue, at the last move that was not a claim
    priority        INTEGER NOT NULL,
    position        INTEGER NOT NULL,            -- order within a priority; kept while processing
    size            INTEGER NOT NULL,            -- bytes of the message
    is_delayed      INTEGER NOT NULL,            -- accepted as: 0 queued, 1 scheduled, 2 waiting
    token           INTEGER NOT NULL DEFAULT 0,
    attempts        INTEGER NOT NULL DEFAULT 0,
    max_attempts    INTEGER NOT NULL,
    is_solo         INTEGER NOT NULL DEFAULT 0,
    is_exhausted    INTEGER NOT NULL DEFAULT 0,
    created_ms      INTEGER NOT NULL,
    updated_ms      INTEGER NOT NULL,
    due_ms          INTEGER,                     -- scheduled, failing; `{never}` while waiting, + 1 while blocked
    holder          TEXT,                        -- processing: the worker's key ...
    serial          INTEGER,                     -- ... its claim ...
    lease_ms        INTEGER,                     -- ... and until when
    is_batch        INTEGER NOT NULL DEFAULT 0,  -- the lease was taken together with others
    is_cancelling   INTEGER NOT NULL DEFAULT 0,
    waited_ms       INTEGER NOT NULL DEFAULT 0,  -- somebody waits for the end until then
    result_ttl_ms   INTEGER NOT NULL,
    dedup_ttl_ms    INTEGER NOT NULL,
    dead_ttl_ms     INTEGER NOT NULL,
    result_until_ms INTEGER,                     -- completed: the result goes
    dedup_until_ms  INTEGER,                     -- completed: the id is free again
    expires_ms      INTEGER,                     -- finished: the record goes
    sweep_ms        INTEGER,                     -- finished: the next of these that needs work; `{never}`: pinned
    settled_token   INTEGER,                     -- the last settle and its answer, for repeats
    settled_state   TEXT,
    result          BLOB,
    message         BLOB,                        -- a short one; else NULL, and it is in `message`
    UNIQUE (qid, id)
);
CREATE INDEX job_queued ON job (qid, epoch, priority DESC, position) WHERE state = 'queued';
CREATE INDEX job_due ON job (qid, epoch, due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX job_sweep ON job (qid, epoch, sweep_ms) WHERE sweep_ms IS NOT NULL;
CREATE INDEX job_dead ON job (qid, epoch, updated_ms) WHERE state = 'failed';
CREATE INDEX job_lease ON job (qid, lease_ms, key, holder, serial) WHERE state = 'processing';

-- Long ones apart from the job, so that its moves do not copy them.
CREATE TABLE message (
    key             INTEGER PRIMARY KEY,
    message         BLOB NOT NULL
);

-- What only some jobs have. It goes with the job.
CREATE TABLE tie (
    key             INTEGER PRIMARY KEY,
    qid             INTEGER NOT NULL,
    grp             TEXT,                        -- '': of persistent jobs, which stand in no line
    sequence        INTEGER,                     -- its place in the line
    line_epoch      INTEGER,                     -- of the queue while it is unfinished; a purge renews it if it runs
    not_before_ms   INTEGER,                     -- for when it waits no longer
    progress        BLOB
);
CREATE INDEX tie_line ON tie (qid, grp, line_epoch, sequence) WHERE line_epoch IS NOT NULL;

-- Which unfinished job waits, or waited, for which.
CREATE TABLE link (
    pred_key        INTEGER NOT NULL,
    is_met          INTEGER NOT NULL,
    dep_key         INTEGER NOT NULL,
    PRIMARY KEY (pred_key, is_met, dep_key)
) WITHOUT ROWID;
CREATE INDEX link_dep ON link (dep_key, is_met);

-- Jobs that have ended, and some that wait for them do not know yet.
CREATE TABLE cascade (
    key             INTEGER PRIMARY KEY,
    qid             INTEGER NOT NULL,
    id              TEXT NOT NULL,
    cause           TEXT NOT NULL                -- 'completed', 'failed', or that of its tombstone
);
CREATE INDEX cascade_queue ON cascade (qid, key);

CREATE TABLE schedule (
    qid             INTEGER NOT NULL,
    name            TEXT NOT NULL,
    spec            BLOB NOT NULL,
    next_ms         INTEGER NOT NULL,
    PRIMARY KEY (qid, name)
) WITHOUT ROWID;
CREATE INDEX schedule_next ON schedule (qid, next_ms);

CREATE TABLE error (
    key             INTEGER NOT NULL,
    token           INTEGER NOT NULL,            -- a claim fails at most once
    at_ms           INTEGER NOT NULL,
    worker          TEXT NOT NULL,
    attempt         INTEGER NOT NULL,
    error           BLOB NOT NULL,
    PRIMARY KEY (key, token)
);

CREATE TABLE worker (
    qid             INTEGER NOT NULL,
    worker          TEXT NOT NULL,
    runners         INTEGER NOT NULL,
    ttl_ms          INTEGER NOT NULL,
    deadline_ms     INTEGER NOT NULL,
    has_grace       INTEGER NOT NULL DEFAULT 0,  -- given since its last heartbeat
    PRIMARY KEY (qid, worker)
) WITHOUT ROWID;

-- What is left of a removed record, for repeated calls.
CREATE TABLE tombstone (
    grave           INTEGER PRIMARY KEY,         -- rises: the newest of an id is its latest
    qid             INTEGER NOT NULL,
    id              TEXT NOT NULL,
    nonce           BLOB NOT NULL,
    token           INTEGER NOT NULL,
    is_delayed      INTEGER NOT NULL,
    settled_token   INTEGER,
    settled_state   TEXT,
    cause           TEXT NOT NULL,
    until_ms        INTEGER NOT NULL,
    UNIQUE (qid, id, nonce)
);
CREATE INDEX tombstone_until ON tombstone (qid, until_ms);

-- Written only while somebody listens.
CREATE TABLE event (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    qid             INTEGER NOT NULL,
    at_s            INTEGER NOT NULL,
    name            TEXT NOT NULL,
    id              TEXT NOT NULL
);
