-- The store, schema version 9. Tables are private, views are public: README and `rootwalk sql` speak of views only.
-- The tables nodes, edges and evidence are public as well; the diagnosis writes them.
-- It may be run on a store that has these tables: a migration adds what is new and replaces the views (`schema.py`).
-- Times are Unix ns, durations ns, ids lower-case hex text; what is not known is NULL.

CREATE TABLE IF NOT EXISTS schema_versions (
    version INTEGER NOT NULL,
    created_unix_ns BIGINT NOT NULL,
    product TEXT NOT NULL
);

-- One row, the store's own id: journals carry it, so that none is read into another store.
CREATE TABLE IF NOT EXISTS store_identity (
    store_id TEXT NOT NULL
);
INSERT INTO store_identity SELECT replace(uuid()::TEXT, '-', '') WHERE NOT EXISTS (FROM store_identity);

-- One row a journal: every record of that journal below (segment, end_bytes) is in the tables. It is written in the
-- transaction that stores the records, which is what makes a replay store each record exactly once. The id is empty for
-- a journal of schema version 8 or older. A store that goes by two names has had two journals.
CREATE TABLE IF NOT EXISTS journal_progress (
    segment BIGINT NOT NULL,
    end_bytes BIGINT NOT NULL,
    journal_id TEXT DEFAULT ''
);

-- Requests that came from files, by a hash of their signal and bytes. A row is written in the transaction that stores
-- the request, so that importing a file again, or the rest of one, stores each request exactly once.
CREATE TABLE IF NOT EXISTS imported_requests (
    request_id TEXT NOT NULL,
    received_unix_ns BIGINT NOT NULL
);

-- received_unix_ns is the time of the request that brought the span: the window for spans sent again.
-- span_key is span id and trace id as one number, for the search for spans sent again.
-- Compression is named where DuckDB's search for the best one costs more than it saves: ids are random, and attributes
-- are text that zstd makes smaller than the default does, in less time.
CREATE TABLE IF NOT EXISTS span_records (
    received_unix_ns BIGINT NOT NULL,
    trace_id TEXT USING COMPRESSION uncompressed,
    span_id TEXT USING COMPRESSION uncompressed,
    parent_span_id TEXT USING COMPRESSION uncompressed,
    name TEXT,
    kind TEXT,
    start_unix_ns BIGINT,
    end_unix_ns BIGINT,
    status_code TEXT,
    status_message TEXT,
    trace_state TEXT,
    job TEXT,
    attempt BIGINT,
    rank BIGINT,
    local_rank BIGINT,
    world_size BIGINT,
    host_id TEXT,
    host_name TEXT,
    pid BIGINT,
    service_name TEXT,
    scope_name TEXT,
    step BIGINT,
    outcome TEXT,
    phase TEXT,
    phase_index BIGINT,
    sensor TEXT,
    running_ns BIGINT,
    runnable_ns BIGINT,
    runnable_foreign_ns BIGINT,
    runnable_own_ns BIGINT,
    runnable_idle_ns BIGINT,
    blocked_ns BIGINT,
    gc_ns BIGINT,
    loader_running_ns BIGINT,
    blocked_loader_running_ns BIGINT,
    throttled_ns BIGINT,
    operation TEXT,
    communicator_id TEXT,
    communicator_name TEXT,
    communicator_size BIGINT,
    sequence BIGINT,
    bytes BIGINT,
    backend TEXT,
    is_point_to_point BOOLEAN,
    thread_id BIGINT,
    thread_name TEXT,
    role TEXT,
    state TEXT,
    cpu BIGINT,
    aggressor_kind TEXT,
    aggressor_pid BIGINT,
    aggressor_name TEXT,
    aggressor_cgroup TEXT,
    aggressor_ns BIGINT,
    aggressors TEXT,
    attributes TEXT NOT NULL USING COMPRESSION zstd,
    resource TEXT NOT NULL,
    links TEXT NOT NULL,
    events TEXT NOT NULL,
    span_key UBIGINT
);

CREATE TABLE IF NOT EXISTS metric_records (
    received_unix_ns BIGINT NOT NULL,
    name TEXT,
    kind TEXT,
    unit TEXT,
    unix_ns BIGINT,
    start_unix_ns BIGINT,
    value DOUBLE,
    is_monotonic BOOLEAN,
    job TEXT,
    attempt BIGINT,
    rank BIGINT,
    host_id TEXT,
    host_name TEXT,
    service_name TEXT,
    scope_name TEXT,
    attributes TEXT NOT NULL,
    resource TEXT NOT NULL,
    data TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS log_records (
    received_unix_ns BIGINT NOT NULL,
    unix_ns BIGINT,
    observed_unix_ns BIGINT,
    severity_number BIGINT,
    severity_text TEXT,
    event_name TEXT,
    body TEXT,
    trace_id TEXT,
    span_id TEXT,
    flags BIGINT,
    dropped_attributes BIGINT,
    job TEXT,
    attempt BIGINT,
    rank BIGINT,
    host_id TEXT,
    host_name TEXT,
    service_name TEXT,
    scope_name TEXT,
    attributes TEXT NOT NULL,
    resource TEXT NOT NULL
);

-- (received_unix_ns, dictionary_id, profile_index) names a profile; its samples carry it.
CREATE TABLE IF NOT EXISTS profile_records (
    received_unix_ns BIGINT NOT NULL,
    dictionary_id TEXT NOT NULL,
    profile_index BIGINT NOT NULL,
    profile_id TEXT,
    unix_ns BIGINT,
    duration_ns BIGINT,
    sample_type TEXT,
    unit TEXT,
    period_type TEXT,
    period_unit TEXT,
    period BIGINT,
    sample_count BIGINT NOT NULL,
    dropped_attributes BIGINT,
    payload_format TEXT,
    payload BLOB,
    job TEXT,
    attempt BIGINT,
    rank BIGINT,
    host_id TEXT,
    host_name TEXT,
    service_name TEXT,
    scope_name TEXT,
    attributes TEXT NOT NULL,
    resource TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS profile_sample_records (
    received_unix_ns BIGINT NOT NULL,
    dictionary_id TEXT NOT NULL,
    profile_index BIGINT NOT NULL,
    stack_index BIGINT NOT NULL,
    sample_values BIGINT[] NOT NULL,
    times_unix_ns BIGINT[] NOT NULL,
    trace_id TEXT,
    span_id TEXT,
    attributes TEXT NOT NULL
);

-- Once a dictionary, however many requests bring it; data is the protobuf message ProfilesDictionary in zlib's form.
CREATE TABLE IF NOT EXISTS profile_dictionaries (
    dictionary_id TEXT NOT NULL,
    data BLOB NOT NULL
);

-- location_indices: leaf first. frames: the functions inlined at one location, outermost first, joined by ';'.
CREATE TABLE IF NOT EXISTS profile_stacks (
    dictionary_id TEXT NOT NULL,
    stack_index BIGINT NOT NULL,
    location_indices BIGINT[] NOT NULL
);
CREATE TABLE IF NOT EXISTS profile_locations (
    dictionary_id TEXT NOT NULL,
    location_index BIGINT NOT NULL,
    frames TEXT NOT NULL
);

-- What summaries.py keeps about the tables above. A NULL rank stands for the spans of a job that no rank sent.
CREATE TABLE IF NOT EXISTS rank_summaries (
    job TEXT NOT NULL,
    attempt BIGINT,
    rank BIGINT,
    local_rank BIGINT,
    world_size BIGINT,
    host_id TEXT,
    host_name TEXT,
    pid BIGINT,
    latest_unix_ns BIGINT NOT NULL,
    first_step BIGINT,
    last_step BIGINT,
    steps_s DOUBLE NOT NULL,
    first_unix_ns BIGINT,
    last_unix_ns BIGINT,
    received_unix_ns BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS step_ranges (
    job TEXT NOT NULL,
    attempt BIGINT,
    step BIGINT NOT NULL,
    start_unix_ns BIGINT,
    end_unix_ns BIGINT,
    received_unix_ns BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS rank_processes (
    job TEXT NOT NULL,
    attempt BIGINT,
    rank BIGINT NOT NULL,
    host_id TEXT,
    pid BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS metric_states (
    name TEXT NOT NULL,
    job TEXT,
    attempt BIGINT,
    rank BIGINT,
    host_id TEXT,
    host_name TEXT,
    sensor TEXT,
    attributes TEXT NOT NULL,
    value DOUBLE NOT NULL,
    max_value DOUBLE NOT NULL,
    unix_ns BIGINT NOT NULL
);

CREATE TABLE IF NOT EXISTS clock_offsets (
    job TEXT,
    attempt BIGINT,
    host_id TEXT,
    offset_ns BIGINT
);
COMMENT ON TABLE clock_offsets IS 'Clock of each host minus the reference clock; the collectives view subtracts it.';

CREATE OR REPLACE VIEW rootwalk_schema AS SELECT version, created_unix_ns, product FROM schema_versions;
COMMENT ON VIEW rootwalk_schema IS 'Version of these views, and which Rootwalk made the file.';

CREATE OR REPLACE VIEW spans AS
SELECT trace_id, span_id, parent_span_id, name, kind, start_unix_ns, end_unix_ns,
       end_unix_ns - start_unix_ns AS duration_ns, status_code, status_message, job, attempt, rank, step,
       host_id, host_name, service_name, scope_name, CAST(attributes AS JSON) AS attributes,
       CAST(resource AS JSON) AS resource, CAST(links AS JSON) AS links, CAST(events AS JSON) AS events, trace_state
FROM span_records;
COMMENT ON VIEW spans IS 'Every span of every producer, attributes kept losslessly.';

-- Attributes that are rare or new are read from their text; the others have columns of their own.
CREATE OR REPLACE MACRO texts_of(attributes, key) AS
    attributes ->> ('$."' || key || '".arrayValue.values[*].stringValue');
CREATE OR REPLACE MACRO numbers_of(attributes, key) AS
    CAST(attributes ->> ('$."' || key || '".arrayValue.values[*].doubleValue') AS DOUBLE[]);
CREATE OR REPLACE MACRO seconds_to_ns(seconds) AS CAST(round(TRY_CAST(seconds AS DOUBLE) * 1e9) AS BIGINT);

CREATE OR REPLACE VIEW steps AS
SELECT job, attempt, step, rank, host_id, host_name, trace_id, span_id, start_unix_ns, end_unix_ns,
       end_unix_ns - start_unix_ns AS duration_ns, outcome = 'complete' AS is_complete, sensor,
       running_ns, runnable_ns, runnable_foreign_ns, runnable_own_ns, runnable_idle_ns, blocked_ns,
       gc_ns, loader_running_ns, blocked_loader_running_ns, throttled_ns, received_unix_ns,
       seconds_to_ns(attributes ->> '$."training.thread.blocked_loader_files_time"') AS blocked_loader_files_ns,
       texts_of(attributes, 'training.wait.kinds') AS wait_kinds,
       numbers_of(attributes, 'training.wait.times') AS wait_times,
       seconds_to_ns(attributes ->> '$."training.wait.min_time"') AS wait_min_ns
FROM span_records
WHERE name = 'training.rank_step' AND job IS NOT NULL AND rank IS NOT NULL AND step IS NOT NULL;
COMMENT ON VIEW steps IS 'One row per rank and step: from the end of the rank''s previous optimiser update to the end of this one.';

CREATE OR REPLACE VIEW phases AS
SELECT job, attempt, step, rank, host_id, phase, phase_index, trace_id, span_id, start_unix_ns, end_unix_ns,
       end_unix_ns - start_unix_ns AS duration_ns, sensor,
       running_ns, runnable_ns, runnable_foreign_ns, runnable_own_ns, runnable_idle_ns, blocked_ns,
       gc_ns, blocked_loader_running_ns,
       seconds_to_ns(attributes ->> '$."training.thread.blocked_loader_files_time"') AS blocked_loader_files_ns,
       texts_of(attributes, 'training.wait.kinds') AS wait_kinds,
       numbers_of(attributes, 'training.wait.times') AS wait_times,
       seconds_to_ns(attributes ->> '$."training.wait.min_time"') AS wait_min_ns
FROM span_records
WHERE phase_index IS NOT NULL AND phase IS NOT NULL AND job IS NOT NULL AND rank IS NOT NULL AND step IS NOT NULL;
COMMENT ON VIEW phases IS 'Phases of each rank''s steps; a gap between phases is host time.';

CREATE OR REPLACE VIEW collectives AS
SELECT s.job, s.attempt, s.step, s.rank, s.host_id, s.phase, s.communicator_id, s.communicator_name,
       s.communicator_size, s.sequence, s.is_point_to_point, s.operation, s.bytes, s.backend, s.trace_id, s.span_id,
       s.start_unix_ns - coalesce(c.offset_ns, 0) AS start_unix_ns,
       s.end_unix_ns - coalesce(c.offset_ns, 0) AS end_unix_ns,
       s.end_unix_ns - s.start_unix_ns AS duration_ns,
       s.runnable_ns, s.runnable_foreign_ns, s.runnable_own_ns, s.runnable_idle_ns,
       coalesce(json_extract_string(s.attributes, '$."collective.is_end_known"'), 'true') <> 'false' AS is_end_known
FROM span_records s
LEFT JOIN clock_offsets c
    ON c.job = s.job AND c.attempt IS NOT DISTINCT FROM s.attempt AND c.host_id = s.host_id
WHERE starts_with(s.name, 'collective.') AND s.communicator_id IS NOT NULL AND s.sequence IS NOT NULL
    AND s.job IS NOT NULL AND s.rank IS NOT NULL;
COMMENT ON VIEW collectives IS 'One row per rank and collective, on the aligned clock where clock_offsets knows the host.';

CREATE OR REPLACE VIEW operations AS
SELECT job, attempt, step, rank, host_id,
       TRY_CAST(resource ->> '$."training.pipeline.stage"' AS BIGINT) AS stage,
       TRY_CAST(resource ->> '$."training.data_parallel.rank"' AS BIGINT) AS replica,
       attributes ->> '$."training.operation.type"' AS operation_type, phase,
       TRY_CAST(attributes ->> '$."training.operation.sequence"' AS BIGINT) AS operation_sequence,
       TRY_CAST(attributes ->> '$."training.micro_batch"' AS BIGINT) AS micro_batch,
       operation AS collective, communicator_id, communicator_name, communicator_size, sequence, is_point_to_point,
       trace_id, span_id, start_unix_ns, end_unix_ns, end_unix_ns - start_unix_ns AS duration_ns
FROM span_records
WHERE (starts_with(name, 'operation.') OR starts_with(name, 'collective.')) AND job IS NOT NULL
    AND rank IS NOT NULL AND step IS NOT NULL AND operation_type IS NOT NULL;
COMMENT ON VIEW operations IS 'One row per operation of a rank, where all of them are recorded: computations and communications.';

CREATE OR REPLACE VIEW stalls AS
SELECT job, attempt, step, rank, host_id, host_name, phase, thread_id, thread_name, role, state, sensor, cpu,
       aggressor_kind, aggressor_pid, aggressor_name, aggressor_cgroup, aggressor_ns,
       CAST(aggressors AS JSON) AS aggressors, trace_id, span_id, parent_span_id, start_unix_ns, end_unix_ns,
       end_unix_ns - start_unix_ns AS duration_ns,
       attributes ->> '$."training.wait.kind"' AS wait_kind,
       attributes ->> '$."training.wait.system_call"' AS wait_system_call,
       attributes ->> '$."training.wait.peer"' AS wait_peer,
       TRY_CAST(attributes ->> '$."network.peer.port"' AS BIGINT) AS wait_peer_port,
       attributes ->> '$."system.filesystem.type"' AS wait_file_system,
       attributes ->> '$."system.device"' AS wait_device,
       TRY_CAST(attributes ->> '$."training.waker.pid"' AS BIGINT) AS waker_pid,
       TRY_CAST(attributes ->> '$."training.waker.thread.id"' AS BIGINT) AS waker_thread_id,
       attributes ->> '$."training.waker.name"' AS waker_name,
       TRY_CAST(attributes ->> '$."training.aggressor.thread.id"' AS BIGINT) AS own_thread_id,
       attributes ->> '$."training.aggressor.thread.name"' AS own_thread_name,
       CAST(round(TRY_CAST(attributes ->> '$."training.aggressor.thread.time"' AS DOUBLE) * 1e9) AS BIGINT)
           AS own_thread_ns,
       TRY_CAST(attributes ->> '$."training.aggressor.threads"' AS BIGINT) AS own_threads
FROM span_records
WHERE starts_with(name, 'stall.') AND job IS NOT NULL AND rank IS NOT NULL;
COMMENT ON VIEW stalls IS 'Times of 1 ms or more in which a thread of a rank could not run: what ran in its place, or what it waited for.';

CREATE OR REPLACE VIEW jobs AS
SELECT r.job, r.attempt, max(r.world_size) AS world_size, count(r.rank) AS ranks,
       (SELECT count(*) FROM step_ranges s
        WHERE s.job = r.job AND s.attempt IS NOT DISTINCT FROM r.attempt) AS steps,
       min(r.first_unix_ns) AS first_unix_ns, max(r.last_unix_ns) AS last_unix_ns
FROM rank_summaries r
GROUP BY r.job, r.attempt;
COMMENT ON VIEW jobs IS 'One row per launch of a job that has sent a span.';

CREATE OR REPLACE VIEW ranks AS
SELECT job, attempt, rank, local_rank, world_size, host_id, host_name, pid, first_step, last_step
FROM rank_summaries
WHERE rank IS NOT NULL;
COMMENT ON VIEW ranks IS 'One row per rank: where it ran, and the first and last step that it reported.';

CREATE OR REPLACE VIEW metrics AS
SELECT name, kind, unit, unix_ns, start_unix_ns, value, job, attempt, rank, host_id, host_name, service_name,
       scope_name, CAST(attributes AS JSON) AS attributes, CAST(resource AS JSON) AS resource,
       CAST(data AS JSON) AS data, is_monotonic
FROM metric_records;
COMMENT ON VIEW metrics IS 'One row per data point; value is the number, or the sum of a histogram or summary.';

CREATE OR REPLACE VIEW sensors AS
SELECT host_id, host_name, job, sensor, status, reason, backend, tier, unix_ns
FROM (
    SELECT host_id, host_name, job, unix_ns,
           sensor,
           attributes ->> 'rootwalk.sensor.status' AS status,
           attributes ->> 'rootwalk.sensor.reason' AS reason,
           attributes ->> 'rootwalk.sensor.backend' AS backend,
           TRY_CAST(attributes ->> 'rootwalk.sensor.tier' AS BIGINT) AS tier,
           row_number() OVER (
               PARTITION BY host_id, host_name, job, sensor
               ORDER BY unix_ns DESC
           ) AS age_order
    FROM metric_states
    WHERE name = 'rootwalk.sensor.state'
)
WHERE age_order = 1;
COMMENT ON VIEW sensors IS 'The last known state of each sensor on each host.';

CREATE OR REPLACE VIEW logs AS
SELECT unix_ns, observed_unix_ns, severity_number, severity_text, event_name, CAST(body AS JSON) AS body,
       trace_id, span_id, flags, job, attempt, rank, host_id, host_name, service_name, scope_name,
       CAST(attributes AS JSON) AS attributes, CAST(resource AS JSON) AS resource, dropped_attributes
FROM log_records;
COMMENT ON VIEW logs IS 'Log records and events; an event has an event_name.';

CREATE OR REPLACE VIEW profiles AS
SELECT unix_ns, duration_ns, profile_id, sample_type, unit, period_type, period_unit, period, sample_count,
       job, attempt, rank, host_id, host_name, service_name, scope_name,
       CAST(attributes AS JSON) AS attributes, CAST(resource AS JSON) AS resource,
       payload_format, payload, dropped_attributes
FROM profile_records;
COMMENT ON VIEW profiles IS 'One row per profile; profile_samples has what is in it.';

-- The stack is folded by a subquery, so that only the stacks of the chosen samples are.
CREATE OR REPLACE VIEW profile_samples AS
SELECT p.unix_ns, p.duration_ns, p.profile_id, p.sample_type, p.unit, p.job, p.attempt, p.rank, p.host_id,
       p.host_name, p.service_name,
       CASE WHEN len(s.sample_values) = 0 THEN len(s.times_unix_ns) ELSE list_sum(s.sample_values) END::BIGINT AS value,
       s.sample_values AS values, s.times_unix_ns, s.trace_id, s.span_id, CAST(s.attributes AS JSON) AS attributes,
       (SELECT string_agg(l.frames, ';' ORDER BY u.depth DESC)
        FROM (SELECT k.dictionary_id, unnest(k.location_indices) AS location_index,
                     generate_subscripts(k.location_indices, 1) AS depth
              FROM profile_stacks k
              WHERE k.dictionary_id = s.dictionary_id AND k.stack_index = s.stack_index) u
        JOIN profile_locations l ON l.dictionary_id = u.dictionary_id AND l.location_index = u.location_index
       ) AS stack
FROM profile_sample_records s
JOIN profile_records p ON p.received_unix_ns = s.received_unix_ns AND p.dictionary_id = s.dictionary_id
    AND p.profile_index = s.profile_index;
COMMENT ON VIEW profile_samples IS 'One row per sample, its stack folded from root to leaf; value is the sum of its values, or its number of times.';

CREATE TABLE IF NOT EXISTS nodes (
    job TEXT,
    attempt BIGINT,
    id TEXT,
    kind TEXT,
    label TEXT,
    attributes JSON
);
COMMENT ON TABLE nodes IS 'Dependency graph: what can be to blame or be slowed.';

CREATE TABLE IF NOT EXISTS edges (
    job TEXT,
    attempt BIGINT,
    source_id TEXT,
    target_id TEXT,
    kind TEXT,
    seconds DOUBLE,
    evidence_ids JSON,
    attributes JSON
);
COMMENT ON TABLE edges IS 'Dependency graph: what waits for, runs on or contends with what, in seconds over the window.';

CREATE TABLE IF NOT EXISTS evidence (
    job TEXT,
    attempt BIGINT,
    id TEXT,
    signal TEXT,
    value DOUBLE,
    unit TEXT,
    peers DOUBLE,
    history DOUBLE,
    z DOUBLE,
    trace_id TEXT,
    span_id TEXT,
    query TEXT,
    attributes JSON
);
COMMENT ON TABLE evidence IS 'The measurements that edges and findings rest on.';

-- What `diagnose` found last in each job and attempt.
CREATE TABLE IF NOT EXISTS diagnosed_findings (
    job TEXT,
    attempt BIGINT,
    id TEXT,
    state TEXT,
    reason TEXT,
    layer TEXT,
    rank BIGINT,
    onset_step BIGINT,
    share_s DOUBLE,
    confidence_band TEXT,
    verdict JSON,
    written_unix_ns BIGINT
);

-- What live detection has seen open and close; closed_unix_ns is NULL while it is open.
CREATE TABLE IF NOT EXISTS live_findings (
    job TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    id TEXT NOT NULL,
    reason TEXT NOT NULL,
    node TEXT NOT NULL,
    layer TEXT,
    owner TEXT NOT NULL,
    severity TEXT NOT NULL,
    confidence_band TEXT NOT NULL,
    rank BIGINT,
    host_name TEXT,
    share_s DOUBLE,
    first_step BIGINT NOT NULL,
    last_step BIGINT NOT NULL,
    onset_unix_ns BIGINT,
    detected_unix_ns BIGINT NOT NULL,
    named_unix_ns BIGINT NOT NULL,
    closed_unix_ns BIGINT,
    text TEXT NOT NULL,
    verdict JSON
);

CREATE OR REPLACE VIEW findings AS
SELECT coalesce(d.job, l.job) AS job, coalesce(d.attempt, l.attempt) AS attempt, coalesce(d.id, l.id) AS id,
       CASE WHEN l.closed_unix_ns IS NOT NULL THEN 'closed' ELSE coalesce(d.state, 'open') END AS state,
       coalesce(d.reason, l.reason) AS reason, coalesce(d.layer, l.layer) AS layer, coalesce(d.rank, l.rank) AS rank,
       coalesce(d.onset_step, l.first_step) AS onset_step, coalesce(d.share_s, l.share_s) AS share_s,
       coalesce(d.confidence_band, l.confidence_band) AS confidence_band, coalesce(d.verdict, l.verdict) AS verdict,
       d.written_unix_ns, l.detected_unix_ns, l.named_unix_ns, l.closed_unix_ns
FROM diagnosed_findings d
FULL JOIN live_findings l ON l.job = d.job AND l.attempt = d.attempt AND l.id = d.id;
COMMENT ON VIEW findings IS 'What was found, a row per cause and episode; the last columns are known where live detection ran.';
