-- append_v2: stores the episodes of one or more appends to the log of one namespace, in one transaction.
--
-- An append is all or nothing; one that is refused does not touch the others. What is promised:
--   * Positions are dense and commit in their order: the namespace's row is locked before a position is drawn and until
--     the commit. The row is locked, never updated: the head is the last key of the log.
--   * Sending an episode again returns what was stored the first time. This is checked before anything else, and in a
--     statement after the one that locks: in READ COMMITTED only a later statement sees what the lock waited for.
--   * Everything is checked before anything is written, so no savepoints are needed.
--
-- Appends that meet nothing are stored together, by one statement; all others one by one, in their place, by append_v1,
-- which tells why one is refused. An append meets nothing if it is `a_plain`, its session is open, its agent has written
-- before, and none of its ids is known. What is met is looked up for all appends after the lock is taken and before
-- anything is written. It stays true while they are stored in their order: sessions do not close meanwhile, and no id of
-- a plain append comes twice.
--
-- Arguments: the namespace's key; arrays with one element an append (session, agent, expectation: 0 any, 1 no stream,
-- 2 stream exists, 3 exactly `revision`; `a_plain`: it asks nothing of the log, that is no expectation but `any`, no
-- condition, no thread that it ends, no decision that it supersedes, and no id of its episodes, decisions and threads
-- comes a second time in this call); arrays with one element an append condition, and arrays with one element an episode,
-- both as append_v1 has them, grouped by append in order; arrays with one element a decision and a thread, in order, where
-- `d_episode` and `t_episode` are the index of the episode from 1 and the ordinals are the place in it. `e_tags`,
-- `e_to_agents` and `t_tags` are array literals.
--
-- Returns one row an episode for appends that are stored (outcome OK) or were stored before (DUPLICATE), in any order:
-- their positions tell it; one row with a reason of the contract and its details for an append that is refused.
CREATE FUNCTION append_v2(
    p_namespace int,
    a_session text[], a_agent text[], a_expectation smallint[], a_revision bigint[], a_plain boolean[],
    c_append int[], c_query text[], c_params jsonb[],
    e_append int[], e_id uuid[], e_digest bytea[], e_turn bigint[], e_kind text[], e_summary text[], e_search text[],
    e_tags text[], e_attributes jsonb[], e_event_time timestamptz[], e_decisions jsonb[], e_threads jsonb[],
    e_ended jsonb[], e_to_agents text[],
    d_episode int[], d_ordinal smallint[], d_id text[],
    t_episode int[], t_ordinal smallint[], t_id text[], t_priority int[], t_tags text[], t_plan_id text[], t_step int[]
) RETURNS TABLE (append int, outcome text, details jsonb, r_position bigint, r_revision bigint, r_time timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_most int := cardinality(a_session);
    v_language regconfig;
    v_floor bigint;
    v_session int[];     -- keys, one an append; null: none that takes episodes
    v_agent int[];
    v_alone int[];       -- the appends that meet something
    v_from int := 1;     -- appends v_from .. v_through are stored together
    v_through int;
    v_first int;         -- and their episodes are v_first .. v_last
    v_last int := 0;
    v_head bigint;       -- last position drawn
    v_now timestamptz;   -- never before the time of an earlier record
    v_revision bigint[]; -- last one of each stream; null: none
BEGIN
    SELECT n.text_language::regconfig, n.floor INTO v_language, v_floor
    FROM namespaces n WHERE n.namespace_id = p_namespace AND n.name IS NOT NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT i, 'NAMESPACE_NOT_FOUND', '{}'::jsonb, 0::bigint, 0::bigint, NULL::timestamptz
                     FROM generate_subscripts(a_session, 1) i;
        RETURN;
    END IF;

    -- Look-ups are subqueries that are run for each row: as joins, whole tables would be read.
    SELECT array_agg((SELECT s.session_key FROM sessions s
                      WHERE s.namespace_id = p_namespace AND s.session_id = a.session AND s.state = 1) ORDER BY a.i),
           array_agg((SELECT g.agent_key FROM agents g
                      WHERE g.namespace_id = p_namespace AND g.agent_id = a.agent) ORDER BY a.i)
    INTO v_session, v_agent
    FROM unnest(a_session, a_agent) WITH ORDINALITY AS a (session, agent, i);

    -- An id is looked up as the first one from it on: without statistics of a young table, `=` may read all of it.
    v_alone := ARRAY(
        SELECT a.i::int FROM unnest(a_plain, v_session, v_agent) WITH ORDINALITY AS a (plain, session, agent, i)
        WHERE NOT a.plain OR a.session IS NULL OR a.agent IS NULL
        UNION ALL
        SELECT e.append FROM unnest(e_append, e_id) AS e (append, id)
        WHERE e.id = (SELECT l.record_id FROM log l WHERE l.namespace_id = p_namespace AND l.record_id >= e.id
                      ORDER BY l.record_id LIMIT 1)
        UNION ALL
        SELECT e_append[d.episode] FROM unnest(d_episode, d_id) AS d (episode, id)
        WHERE d.id = (SELECT k.decision_id FROM decisions k WHERE k.namespace_id = p_namespace AND k.decision_id >= d.id
                      ORDER BY k.decision_id LIMIT 1)
        UNION ALL
        SELECT e_append[t.episode] FROM unnest(t_episode, t_id) AS t (episode, id)
        WHERE t.id = (SELECT k.thread_id FROM threads k WHERE k.namespace_id = p_namespace AND k.thread_id >= t.id
                      ORDER BY k.thread_id LIMIT 1));

    WHILE v_from <= v_most LOOP
        v_through := coalesce((SELECT min(i) FROM unnest(v_alone) i WHERE i >= v_from) - 1, v_most);
        v_first := v_last + 1;
        IF v_through < v_from THEN
            v_through := v_from;
            v_last := coalesce(array_position(e_append, v_from + 1, v_first) - 1, cardinality(e_append));
            RETURN QUERY
            SELECT v_from, r.outcome, r.details, r.r_position, r.r_revision, r.r_time
            FROM append_alone_v2(
                p_namespace, v_from, a_session, a_agent, a_expectation, a_revision, c_append, c_query, c_params,
                e_id[v_first:v_last], e_digest[v_first:v_last], e_turn[v_first:v_last], e_kind[v_first:v_last],
                e_summary[v_first:v_last], e_search[v_first:v_last], e_tags[v_first:v_last],
                e_attributes[v_first:v_last], e_event_time[v_first:v_last], e_decisions[v_first:v_last],
                e_threads[v_first:v_last], e_ended[v_first:v_last], e_to_agents[v_first:v_last]) r;
            v_from := v_through + 1;
            CONTINUE;
        END IF;
        v_last := coalesce(array_position(e_append, v_through + 1, v_first) - 1, cardinality(e_append));

        -- Not while rows are inserted: each look-up would step over those that came before it in the same statement.
        SELECT l.position, greatest(l.time, clock_timestamp()),
               ARRAY(SELECT (SELECT k.revision FROM log k
                             WHERE k.namespace_id = p_namespace AND k.session_key = v_session[i]
                               AND k.agent_key = v_agent[i] AND k.record_kind = 1
                             ORDER BY k.revision DESC LIMIT 1)
                     FROM generate_series(v_from, v_through) i)
        INTO v_head, v_now, v_revision
        FROM log l WHERE l.namespace_id = p_namespace ORDER BY l.position DESC LIMIT 1;
        v_head := coalesce(v_head, v_floor);
        v_now := coalesce(v_now, clock_timestamp());
        IF v_now > clock_timestamp() + interval '5 s' THEN
            RAISE WARNING 'the clock of the database is % behind its log: times stand still until it has caught up',
                v_now - clock_timestamp();
        END IF;

        RETURN QUERY
        WITH decided AS (
            INSERT INTO decisions (namespace_id, decision_id, session_key, position, ordinal)
            SELECT p_namespace, d.id, v_session[e_append[d.episode]], v_head + d.episode - v_first + 1, d.ordinal
            FROM unnest(d_episode, d_ordinal, d_id) AS d (episode, ordinal, id)
            WHERE d.episode BETWEEN v_first AND v_last
        ), opened AS (
            INSERT INTO threads (namespace_id, thread_id, session_key, agent_key, position, ordinal, state, priority,
                                 tags, plan_id, step)
            SELECT p_namespace, t.id, v_session[e_append[t.episode]], v_agent[e_append[t.episode]],
                   v_head + t.episode - v_first + 1, t.ordinal, 1, t.priority, t.tags::text[], t.plan_id, t.step
            FROM unnest(t_episode, t_ordinal, t_id, t_priority, t_tags, t_plan_id, t_step)
                 AS t (episode, ordinal, id, priority, tags, plan_id, step)
            WHERE t.episode BETWEEN v_first AND v_last
        )
        INSERT INTO log AS l (namespace_id, position, record_kind, record_id, time, session_key, agent_key, revision,
                              turn, kind, summary, tags, attributes, event_time, decisions, open_threads, to_agents,
                              digest, search)
        SELECT p_namespace, v_head + e.i, 1, e.id, v_now, v_session[e.append], v_agent[e.append],
               row_number() OVER (PARTITION BY v_session[e.append], v_agent[e.append] ORDER BY e.i)
               + coalesce(v_revision[e.append - v_from + 1], 0),
               e.turn, e.kind, e.summary, e.tags::text[], e.attributes, e.event_time, e.decisions, e.threads,
               e.to_agents::text[], e.digest, to_tsvector(v_language, e.search)
        FROM unnest(e_append[v_first:v_last], e_id[v_first:v_last], e_digest[v_first:v_last], e_turn[v_first:v_last],
                    e_kind[v_first:v_last], e_summary[v_first:v_last], e_search[v_first:v_last],
                    e_tags[v_first:v_last], e_attributes[v_first:v_last], e_event_time[v_first:v_last],
                    e_decisions[v_first:v_last], e_threads[v_first:v_last], e_to_agents[v_first:v_last])
             WITH ORDINALITY
             AS e (append, id, digest, turn, kind, summary, search, tags, attributes, event_time, decisions, threads,
                   to_agents, i)
        RETURNING e_append[v_first + (l.position - v_head)::int - 1], 'OK', NULL::jsonb, l.position, l.revision,
                  l.time;
        v_from := v_through + 1;
    END LOOP;
END
$$;

-- One append by append_v1: the appends' and the conditions' arrays are whole, the episodes' arrays are the append's own.
CREATE FUNCTION append_alone_v2(
    p_namespace int, p_append int,
    a_session text[], a_agent text[], a_expectation smallint[], a_revision bigint[],
    c_append int[], c_query text[], c_params jsonb[],
    e_id uuid[], e_digest bytea[], e_turn bigint[], e_kind text[], e_summary text[], e_search text[],
    e_tags text[], e_attributes jsonb[], e_event_time timestamptz[], e_decisions jsonb[], e_threads jsonb[],
    e_ended jsonb[], e_to_agents text[]
) RETURNS TABLE (append int, outcome text, details jsonb, r_position bigint, r_revision bigint, r_time timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
    v_conditions int := cardinality(array_positions(c_append, p_append));
    v_from int := coalesce(array_position(c_append, p_append), 1);
    v_through int := v_from + v_conditions - 1;
BEGIN
    RETURN QUERY SELECT * FROM append_v1(
        p_namespace,
        a_session[p_append:p_append], a_agent[p_append:p_append],
        a_expectation[p_append:p_append], a_revision[p_append:p_append],
        array_fill(1, ARRAY[v_conditions]), c_query[v_from:v_through], c_params[v_from:v_through],
        array_fill(1, ARRAY[cardinality(e_id)]), e_id, e_digest, e_turn, e_kind, e_summary, e_search,
        e_tags, e_attributes, e_event_time, e_decisions, e_threads, e_ended, e_to_agents);
END
$$;
