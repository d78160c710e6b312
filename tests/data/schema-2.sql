-- The store, schema version 2. Tables are private, views are public: README and `rootwalk sql` speak of views only.
-- The five tables at the end are public as well; the diagnosis writes them.
-- Times are Unix ns, durations ns, ids lower-case hex text; what is not known is NULL.

CREATE TABLE schema_versions (
    version INTEGER NOT NULL,
    created_unix_ns BIGINT NOT NULL,
    product TEXT NOT NULL
);

-- One row: every journal record below (segment, end_bytes) is in the tables. It is written in the transaction that
-- stores the records, which is what makes a replay store each record exactly once.
CREATE TABLE journal_progress (
    segment BIGINT NOT NULL,
    end_bytes BIGINT NOT NULL
);
INSERT INTO journal_progress VALUES (0, 0);

-- received_unix_ns is the time of the request that brought the span: the window for spans sent again.
CREATE TABLE span_records (
    received_unix_ns BIGINT NOT NULL,
    trace_id TEXT,
    span_id TEXT,
    parent_span_id TEXT,
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
    attributes TEXT NOT NULL,
    resource TEXT NOT NULL,
    links TEXT NOT NULL,
    events TEXT NOT NULL
);

CREATE TABLE metric_records (
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

CREATE TABLE clock_offsets (
    job TEXT,
    attempt BIGINT,
    host_id TEXT,
    offset_ns BIGINT
);
COMMENT ON TABLE clock_offsets IS 'Clock of each host minus the reference clock; the collectives view subtracts it.';

CREATE VIEW rootwalk_schema AS SELECT version, created_unix_ns, product FROM schema_versions;
COMMENT ON VIEW rootwalk_schema IS 'Version of these views, and which Rootwalk made the file.';

CREATE VIEW spans AS
SELECT trace_id, span_id, parent_span_id, name, kind, start_unix_ns, end_unix_ns,
       end_unix_ns - start_unix_ns AS duration_ns, status_code, status_message, job, attempt, rank, step,
       host_id, host_name, service_name, scope_name, CAST(attributes AS JSON) AS attributes,
       CAST(resource AS JSON) AS resource, CAST(links AS JSON) AS links, CAST(events AS JSON) AS events, trace_state
FROM span_records;
COMMENT ON VIEW spans IS 'Every span of every producer, attributes kept losslessly.';

CREATE VIEW steps AS
SELECT job, attempt, step, rank, host_id, host_name, trace_id, span_id, start_unix_ns, end_unix_ns,
       end_unix_ns - start_unix_ns AS duration_ns, outcome = 'complete' AS is_complete, sensor,
       running_ns, runnable_ns, runnable_foreign_ns, runnable_own_ns, runnable_idle_ns, blocked_ns,
       gc_ns, loader_running_ns, blocked_loader_running_ns, throttled_ns
FROM span_records
WHERE name = 'training.rank_step' AND job IS NOT NULL AND rank IS NOT NULL AND step IS NOT NULL;
COMMENT ON VIEW steps IS 'One row per rank and step: from the end of the rank''s previous optimiser update to the end of this one.';

CREATE VIEW phases AS
SELECT job, attempt, step, rank, host_id, phase, phase_index, trace_id, span_id, start_unix_ns, end_unix_ns,
       end_unix_ns - start_unix_ns AS duration_ns, sensor,
       running_ns, runnable_ns, runnable_foreign_ns, runnable_own_ns, runnable_idle_ns, blocked_ns,
       gc_ns, blocked_loader_running_ns
FROM span_records
WHERE phase_index IS NOT NULL AND phase IS NOT NULL AND job IS NOT NULL AND rank IS NOT NULL AND step IS NOT NULL;
COMMENT ON VIEW phases IS 'Phases of each rank''s steps; a gap between phases is host time.';

CREATE VIEW collectives AS
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

CREATE VIEW stalls AS
SELECT job, attempt, step, rank, host_id, host_name, phase, thread_id, thread_name, role, state, sensor, cpu,
       aggressor_kind, aggressor_pid, aggressor_name, aggressor_cgroup, aggressor_ns,
       CAST(aggressors AS JSON) AS aggressors, trace_id, span_id, parent_span_id, start_unix_ns, end_unix_ns,
       end_unix_ns - start_unix_ns AS duration_ns
FROM span_records
WHERE starts_with(name, 'stall.') AND job IS NOT NULL AND rank IS NOT NULL;
COMMENT ON VIEW stalls IS 'Times of 1 ms or more in which a thread of a rank could not run, and what ran in its place.';

CREATE VIEW jobs AS
SELECT job, attempt, max(world_size) AS world_size, count(DISTINCT rank) AS ranks,
       count(DISTINCT step) FILTER (WHERE name = 'training.rank_step') AS steps,
       min(start_unix_ns) AS first_unix_ns, max(end_unix_ns) AS last_unix_ns
FROM span_records
WHERE job IS NOT NULL
GROUP BY job, attempt;
COMMENT ON VIEW jobs IS 'One row per launch of a job that has sent a span.';

CREATE VIEW ranks AS
SELECT job, attempt, rank, arg_max(local_rank, start_unix_ns) AS local_rank,
       arg_max(world_size, start_unix_ns) AS world_size, arg_max(host_id, start_unix_ns) AS host_id,
       arg_max(host_name, start_unix_ns) AS host_name, arg_max(pid, start_unix_ns) AS pid,
       min(step) FILTER (WHERE name = 'training.rank_step') AS first_step,
       max(step) FILTER (WHERE name = 'training.rank_step') AS last_step
FROM span_records
WHERE job IS NOT NULL AND rank IS NOT NULL
GROUP BY job, attempt, rank;
COMMENT ON VIEW ranks IS 'One row per rank: where it ran, and the first and last step that it reported.';

CREATE VIEW metrics AS
SELECT name, kind, unit, unix_ns, start_unix_ns, value, job, attempt, rank, host_id, host_name, service_name,
       scope_name, CAST(attributes AS JSON) AS attributes, CAST(resource AS JSON) AS resource,
       CAST(data AS JSON) AS data, is_monotonic
FROM metric_records;
COMMENT ON VIEW metrics IS 'One row per data point; value is the number, or the sum of a histogram or summary.';

CREATE VIEW sensors AS
SELECT host_id, host_name, job, sensor, status, reason, backend, tier, unix_ns
FROM (
    SELECT host_id, host_name, job, unix_ns,
           attributes ->> 'rootwalk.sensor.name' AS sensor,
           attributes ->> 'rootwalk.sensor.status' AS status,
           attributes ->> 'rootwalk.sensor.reason' AS reason,
           attributes ->> 'rootwalk.sensor.backend' AS backend,
           TRY_CAST(attributes ->> 'rootwalk.sensor.tier' AS BIGINT) AS tier,
           row_number() OVER (
               PARTITION BY host_id, host_name, job, attributes ->> 'rootwalk.sensor.name'
               ORDER BY unix_ns DESC NULLS LAST, received_unix_ns DESC
           ) AS age_order
    FROM metric_records
    WHERE name = 'rootwalk.sensor.state' AND value = 1
)
WHERE age_order = 1;
COMMENT ON VIEW sensors IS 'The last known state of each sensor on each host.';

CREATE VIEW logs AS
SELECT NULL::BIGINT AS unix_ns, NULL::BIGINT AS severity_number, NULL::TEXT AS severity_text,
       NULL::TEXT AS event_name, NULL::JSON AS body, NULL::TEXT AS trace_id, NULL::TEXT AS span_id,
       NULL::JSON AS attributes, NULL::JSON AS resource
WHERE false;
COMMENT ON VIEW logs IS 'Log records; empty in this version.';

CREATE VIEW profiles AS
SELECT NULL::BIGINT AS unix_ns, NULL::BIGINT AS duration_ns, NULL::TEXT AS profile_id, NULL::TEXT AS sample_type,
       NULL::TEXT AS unit, NULL::JSON AS attributes, NULL::JSON AS resource
WHERE false;
COMMENT ON VIEW profiles IS 'Profiles; empty in this version.';

CREATE TABLE nodes (
    job TEXT,
    attempt BIGINT,
    id TEXT,
    kind TEXT,
    label TEXT,
    attributes JSON
);
COMMENT ON TABLE nodes IS 'Dependency graph: what can be to blame or be slowed.';

CREATE TABLE edges (
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

CREATE TABLE evidence (
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

CREATE TABLE findings (
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
COMMENT ON TABLE findings IS 'What the diagnosis found, one row per episode.';
