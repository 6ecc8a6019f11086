-- append_v1: stores the episodes of one or more appends to the log of one namespace, in one transaction.
--
-- An append is all or nothing; one that is refused does not touch the others. What is promised:
--   * Positions are dense and commit in their order: the namespace's row is locked before a position is drawn and until
--     the commit. The row is locked, never updated: the head is the last key of the log.
--   * Sending an episode again returns what was stored the first time. This is checked before anything else, and in a
--     statement after the one that locks: in READ COMMITTED only a later statement sees what the lock waited for.
--   * Everything is checked before anything is written, so no savepoints are needed.
-- Called as one autocommit statement: the lock never waits for a client. Durability is the connection's
-- (synchronous_commit), because a SET on the function would end before the commit. Plans are generic: planning anew
-- cost more than half of an append, and every look-up is a step in one index whatever the values.
--
-- Arguments: the namespace's key; arrays with one element an append (session, agent, expectation: 0 any, 1 no stream,
-- 2 stream exists, 3 exactly `revision`); arrays with one element an append condition, and arrays with one element an
-- episode, both grouped by append in order (`c_append` and `e_append` are the append's index from 1). A condition is a
-- query for the position of the first record that breaks it, with its parameters as $1; the same filter that lists and
-- subscriptions use compiles to it. `e_ended` holds the threads that an episode ends: [{"id", "fence", "how"}], `how`
-- being a thread event type. `e_tags` and `e_to_agents` are array literals.
--
-- Returns one row an episode for appends that are stored (outcome OK) or were stored before (DUPLICATE), in order; one
-- row with a reason of the contract and its details for an append that is refused.
CREATE FUNCTION append_v1(
    p_namespace int,
    a_session text[], a_agent text[], a_expectation smallint[], a_revision bigint[],
    c_append int[], c_query text[], c_params jsonb[],
    e_append int[], e_id uuid[], e_digest bytea[], e_turn bigint[], e_kind text[], e_summary text[], e_search text[],
    e_tags text[], e_attributes jsonb[], e_event_time timestamptz[], e_decisions jsonb[], e_threads jsonb[],
    e_ended jsonb[], e_to_agents text[]
) RETURNS TABLE (append int, outcome text, details jsonb, r_position bigint, r_revision bigint, r_time timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_language regconfig;
    v_head bigint;       -- last position drawn
    v_now timestamptz;   -- never before the time of an earlier record
    v_session record;
    v_agent int;
    v_revision bigint;   -- last revision of the stream
    v_known record;
    v_refusal record;
    v_next bigint;
    v_linked boolean;    -- has the append decisions or threads at all?
    v_failed jsonb;      -- conditions that do not hold: {"index": position}
    v_from int;
    v_through int := 0;  -- the append's episodes are v_from .. v_through
BEGIN
    SELECT n.text_language::regconfig, n.floor INTO v_language, v_head
    FROM namespaces n WHERE n.namespace_id = p_namespace AND n.name IS NOT NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT i, 'NAMESPACE_NOT_FOUND', '{}'::jsonb, 0::bigint, 0::bigint, NULL::timestamptz
                     FROM generate_subscripts(a_session, 1) i;
        RETURN;
    END IF;

    SELECT l.position, greatest(l.time, clock_timestamp()) INTO v_next, v_now
    FROM log l WHERE l.namespace_id = p_namespace ORDER BY l.position DESC LIMIT 1;
    v_head := coalesce(v_next, v_head);
    v_now := coalesce(v_now, clock_timestamp());
    IF v_now > clock_timestamp() + interval '5 s' THEN
        RAISE WARNING 'the clock of the database is % behind its log: times stand still until it has caught up',
            v_now - clock_timestamp();
    END IF;

    FOR i IN 1 .. cardinality(a_session) LOOP
        append := i;
        details := '{}';
        v_from := v_through + 1;
        WHILE v_through < cardinality(e_append) AND e_append[v_through + 1] = i LOOP
            v_through := v_through + 1;
        END LOOP;

        -- Was it sent before?
        SELECT count(*) AS known,
               min(k.ord) FILTER (WHERE l.digest IS DISTINCT FROM k.digest AND l.digest IS NOT NULL) AS reused,
               min(k.ord) FILTER (WHERE l.digest IS NULL) AS erased
        INTO v_known
        FROM unnest(e_id[v_from:v_through], e_digest[v_from:v_through]) WITH ORDINALITY AS k (id, digest, ord)
        JOIN log l ON l.namespace_id = p_namespace AND l.record_id = k.id;
        IF v_known.known > 0 THEN
            IF v_known.reused IS NOT NULL THEN
                outcome := 'EPISODE_ID_REUSED';
                details := jsonb_build_object('episode_id', e_id[v_from + v_known.reused - 1]);
                RETURN NEXT;
            ELSIF v_known.erased IS NOT NULL THEN
                outcome := 'EPISODE_ERASED';
                details := jsonb_build_object('episode_id', e_id[v_from + v_known.erased - 1]);
                RETURN NEXT;
            ELSIF v_known.known < v_through - v_from + 1 THEN
                outcome := 'PARTIAL_DUPLICATE';
                details := jsonb_build_object('known', v_known.known, 'sent', v_through - v_from + 1);
                RETURN NEXT;
            ELSE
                RETURN QUERY
                SELECT i, 'DUPLICATE', '{}'::jsonb, l.position, l.revision, l.time
                FROM unnest(e_id[v_from:v_through]) WITH ORDINALITY AS k (id, ord)
                JOIN log l ON l.namespace_id = p_namespace AND l.record_id = k.id
                ORDER BY k.ord;
            END IF;
            CONTINUE;
        END IF;

        -- May it be stored?
        SELECT s.session_key, s.state INTO v_session
        FROM sessions s WHERE s.namespace_id = p_namespace AND s.session_id = a_session[i];
        IF NOT FOUND THEN
            outcome := 'SESSION_NOT_FOUND';
        ELSIF v_session.state <> 1 THEN
            outcome := 'SESSION_CLOSED';
        ELSE
            outcome := 'OK';
        END IF;
        IF outcome <> 'OK' THEN
            RETURN NEXT;
            CONTINUE;
        END IF;

        SELECT g.agent_key INTO v_agent
        FROM agents g WHERE g.namespace_id = p_namespace AND g.agent_id = a_agent[i];
        v_revision := coalesce((
            SELECT l.revision FROM log l
            WHERE l.namespace_id = p_namespace AND l.session_key = v_session.session_key AND l.agent_key = v_agent
              AND l.record_kind = 1
            ORDER BY l.revision DESC LIMIT 1), 0);
        IF a_expectation[i] = 1 AND v_revision > 0
           OR a_expectation[i] = 2 AND v_revision = 0
           OR a_expectation[i] = 3 AND v_revision <> a_revision[i] THEN
            outcome := 'REVISION_CONFLICT';
            details := jsonb_build_object('actual', v_revision);
        END IF;
        IF i = ANY (c_append) THEN
            v_failed := append_conditions_v1(i, c_append, c_query, c_params);
            IF v_failed <> '{}' THEN
                outcome := CASE outcome WHEN 'OK' THEN 'CONDITION_FAILED' ELSE outcome END;
                details := details || jsonb_build_object('conditions', v_failed);
            END IF;
        END IF;
        IF outcome <> 'OK' THEN
            RETURN NEXT;
            CONTINUE;
        END IF;

        v_linked := num_nonnulls(VARIADIC e_decisions[v_from:v_through] || e_threads[v_from:v_through]
                                          || e_ended[v_from:v_through]) > 0;
        IF v_linked THEN
            SELECT r.outcome, r.details INTO v_refusal
            FROM append_refusal_v1(p_namespace, a_agent[i], e_decisions[v_from:v_through],
                                   e_threads[v_from:v_through], e_ended[v_from:v_through]) r;
            IF FOUND THEN
                outcome := v_refusal.outcome;
                details := v_refusal.details;
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;

        -- Store it. An agent exists from its first episode on.
        IF v_agent IS NULL THEN
            INSERT INTO agents (namespace_id, agent_key, agent_id, created_time)
            SELECT p_namespace, coalesce(max(g.agent_key), 0) + 1, a_agent[i], v_now
            FROM agents g WHERE g.namespace_id = p_namespace
            RETURNING agent_key INTO v_agent;
        END IF;

        -- Each episode is followed by the events of the threads that it ends.
        RETURN QUERY
        INSERT INTO log AS l (namespace_id, position, record_kind, record_id, time, session_key, agent_key, revision,
                              turn, kind, summary, tags, attributes, event_time, decisions, open_threads, ended_threads,
                              to_agents, digest, search)
        SELECT p_namespace,
               v_head + sum(1 + coalesce(jsonb_array_length(e.ended), 0)) OVER (ORDER BY e.ord)
                      - coalesce(jsonb_array_length(e.ended), 0),
               1, e.id, v_now, v_session.session_key, v_agent, v_revision + e.ord, e.turn, e.kind, e.summary,
               e.tags::text[], e.attributes, e.event_time, e.decisions, e.threads, e.ended, e.to_agents::text[],
               e.digest, to_tsvector(v_language, e.search)
        FROM unnest(e_id[v_from:v_through], e_digest[v_from:v_through], e_turn[v_from:v_through],
                    e_kind[v_from:v_through], e_summary[v_from:v_through], e_search[v_from:v_through],
                    e_tags[v_from:v_through], e_attributes[v_from:v_through], e_event_time[v_from:v_through],
                    e_decisions[v_from:v_through], e_threads[v_from:v_through], e_ended[v_from:v_through],
                    e_to_agents[v_from:v_through]) WITH ORDINALITY
             AS e (id, digest, turn, kind, summary, search, tags, attributes, event_time, decisions, threads, ended,
                   to_agents, ord)
        ORDER BY e.ord
        RETURNING i, 'OK', NULL::jsonb, l.position, l.revision, l.time;

        v_next := v_head + v_through - v_from + 1
                  + (SELECT coalesce(sum(jsonb_array_length(x)), 0) FROM unnest(e_ended[v_from:v_through]) x);
        IF v_linked THEN
            PERFORM append_threads_v1(p_namespace, v_head, v_next, v_agent, v_now);
        END IF;
        v_head := v_next;
    END LOOP;
END
$$;

-- Which conditions of an append do not hold: {"index from 0": "position of the first record that breaks it"}.
CREATE FUNCTION append_conditions_v1(p_append int, c_append int[], c_query text[], c_params jsonb[]) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_first int := array_position(c_append, p_append);
    v_position bigint;
    v_failed jsonb := '{}';
BEGIN
    FOR k IN v_first .. cardinality(c_append) LOOP
        EXIT WHEN c_append[k] <> p_append;
        EXECUTE c_query[k] INTO v_position USING c_params[k];
        IF v_position IS NOT NULL THEN
            v_failed := v_failed || jsonb_build_object((k - v_first)::text, v_position);
        END IF;
    END LOOP;
    RETURN v_failed;
END
$$;

-- The first reason why decisions or threads of an append cannot be stored; no row if they can.
--
-- What most appends need is two probes of an index. The full check follows only if a probe hits, or if the append
-- supersedes or ends anything.
CREATE FUNCTION append_refusal_v1(
    p_namespace int, p_agent text, p_decisions jsonb[], p_threads jsonb[], p_ended jsonb[]
) RETURNS TABLE (outcome text, details jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    v_decided text[] := ARRAY(SELECT d->>'id' FROM unnest(p_decisions) e, jsonb_array_elements(e) d);
    v_opened text[] := ARRAY(SELECT t->>'id' FROM unnest(p_threads) e, jsonb_array_elements(e) t);
BEGIN
    IF num_nonnulls(VARIADIC p_ended) > 0
       OR EXISTS (SELECT FROM unnest(p_decisions) e, jsonb_array_elements(e) d WHERE d ? 'supersedes')
       OR EXISTS (SELECT FROM decisions k WHERE k.namespace_id = p_namespace AND k.decision_id = ANY (v_decided))
       OR EXISTS (SELECT FROM threads t WHERE t.namespace_id = p_namespace AND t.thread_id = ANY (v_opened)) THEN
        RETURN QUERY SELECT * FROM append_refusals_v1(p_namespace, p_agent, p_decisions, p_threads, p_ended);
    END IF;
END
$$;

-- The full check. OFFSET 0 keeps each look-up a step in an index: as a join, tables would be read as a whole.
CREATE FUNCTION append_refusals_v1(
    p_namespace int, p_agent text, p_decisions jsonb[], p_threads jsonb[], p_ended jsonb[]
) RETURNS TABLE (outcome text, details jsonb)
LANGUAGE sql STABLE AS $$
    WITH decided AS (
        SELECT e.ord, d.ord AS item, d.value->>'id' AS id, d.value->'supersedes' AS supersedes
        FROM unnest(p_decisions) WITH ORDINALITY AS e (items, ord),
             jsonb_array_elements(e.items) WITH ORDINALITY AS d (value, ord)
    ), opened AS (
        SELECT e.ord, t->>'id' AS id
        FROM unnest(p_threads) WITH ORDINALITY AS e (items, ord), jsonb_array_elements(e.items) t
    ), ended AS (
        SELECT e.ord, x->>'id' AS id, coalesce((x->>'fence')::bigint, 0) AS fence
        FROM unnest(p_ended) WITH ORDINALITY AS e (items, ord), jsonb_array_elements(e.items) x
    ), checked AS (
        SELECT x.ord, x.id, x.fence, t.state, t.fence AS current_fence, t.expire_time, g.agent_id AS holder,
               EXISTS (SELECT FROM opened o WHERE o.id = x.id AND o.ord < x.ord) AS opened_here
        FROM ended x
        LEFT JOIN LATERAL (SELECT * FROM threads t
                           WHERE t.namespace_id = p_namespace AND t.thread_id = x.id OFFSET 0) t ON true
        LEFT JOIN agents g ON g.namespace_id = p_namespace AND g.agent_key = t.claimed_by
    ), refusals AS (
        SELECT d.ord, 'DECISION_KNOWN' AS outcome,
               jsonb_build_object('decision_id', d.id, 'episode', d.ord - 1, 'item', d.item - 1) AS details
        FROM decided d, LATERAL (SELECT FROM decisions k
                                 WHERE k.namespace_id = p_namespace AND k.decision_id = d.id OFFSET 0) k
        UNION ALL
        SELECT d.ord, 'DECISION_UNKNOWN',
               jsonb_build_object('decision_id', s, 'episode', d.ord - 1, 'item', d.item - 1)
        FROM decided d, jsonb_array_elements_text(d.supersedes) s
        LEFT JOIN LATERAL (SELECT true AS known FROM decisions k
                           WHERE k.namespace_id = p_namespace AND k.decision_id = s OFFSET 0) k ON true
        WHERE k.known IS NULL
          AND NOT EXISTS (SELECT FROM decided o WHERE o.id = s AND (o.ord, o.item) < (d.ord, d.item))
        UNION ALL
        SELECT o.ord, 'THREAD_STATE', jsonb_build_object('thread_id', o.id, 'state', t.state, 'opening', true)
        FROM opened o, LATERAL (SELECT t.state FROM threads t
                                WHERE t.namespace_id = p_namespace AND t.thread_id = o.id OFFSET 0) t
        UNION ALL
        SELECT c.ord, 'THREAD_NOT_FOUND', jsonb_build_object('thread_id', c.id)
        FROM checked c WHERE c.state IS NULL AND NOT c.opened_here
        UNION ALL
        SELECT c.ord, 'THREAD_STATE', jsonb_build_object('thread_id', c.id, 'state', c.state)
        FROM checked c WHERE c.state > 2
        UNION ALL
        SELECT c.ord, 'FENCE_STALE',
               jsonb_build_object('thread_id', c.id, 'fence', c.fence, 'current_fence', coalesce(c.current_fence, 0))
        FROM checked c WHERE c.fence > 0 AND (c.state IS DISTINCT FROM 2 OR c.fence <> c.current_fence)
        UNION ALL
        SELECT c.ord, 'CLAIM_HELD',
               jsonb_build_object('thread_id', c.id, 'agent_id', c.holder, 'expire_time', c.expire_time)
        FROM checked c WHERE c.fence = 0 AND c.state = 2 AND c.holder <> p_agent AND c.expire_time > clock_timestamp()
    )
    SELECT r.outcome, r.details FROM refusals r ORDER BY r.ord, r.outcome LIMIT 1
$$;

-- Writes what the episodes just stored at p_after < position <= p_through decide, open and end. What they supersede and
-- end is looked up one by one: few episodes do, and as a join the tables would be read as a whole.
CREATE FUNCTION append_threads_v1(p_namespace int, p_after bigint, p_through bigint, p_agent int, p_time timestamptz)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    INSERT INTO decisions (namespace_id, decision_id, session_key, position, ordinal)
    SELECT p_namespace, d.value->>'id', l.session_key, l.position, d.ord
    FROM log l, jsonb_array_elements(l.decisions) WITH ORDINALITY AS d (value, ord)
    WHERE l.namespace_id = p_namespace AND l.position > p_after AND l.position <= p_through AND l.decisions IS NOT NULL;

    FOR r IN
        SELECT l.position, s.id
        FROM log l, jsonb_array_elements(l.decisions) d, jsonb_array_elements_text(d->'supersedes') s (id)
        WHERE l.namespace_id = p_namespace AND l.position > p_after AND l.position <= p_through
          AND l.decisions IS NOT NULL
    LOOP
        UPDATE decisions k SET superseded_by = r.position
        WHERE k.namespace_id = p_namespace AND k.decision_id = r.id AND k.superseded_by IS NULL;
    END LOOP;

    INSERT INTO threads (namespace_id, thread_id, session_key, agent_key, position, ordinal, state, priority, tags,
                         plan_id, step)
    SELECT p_namespace, t.value->>'id', l.session_key, l.agent_key, l.position, t.ord, 1,
           coalesce((t.value->>'priority')::int, 0),
           (SELECT array_agg(tag) FROM jsonb_array_elements_text(t.value->'tags') tag),
           t.value->>'plan_id', (t.value->>'step')::int
    FROM log l, jsonb_array_elements(l.open_threads) WITH ORDINALITY AS t (value, ord)
    WHERE l.namespace_id = p_namespace AND l.position > p_after AND l.position <= p_through
      AND l.open_threads IS NOT NULL;

    FOR r IN
        SELECT l.position, l.record_id, x.value->>'id' AS id, (x.value->>'how')::int AS how, x.ord
        FROM log l, jsonb_array_elements(l.ended_threads) WITH ORDINALITY AS x (value, ord)
        WHERE l.namespace_id = p_namespace AND l.position > p_after AND l.position <= p_through
          AND l.ended_threads IS NOT NULL
    LOOP
        -- An event belongs to the session that opened the thread, so that whoever follows that session sees it.
        WITH ended AS (
            UPDATE threads t
            SET state = CASE WHEN r.how = 4 THEN 3 ELSE 4 END, superseded = r.how = 6,
                ended_by = p_agent, ended_position = r.position, ended_time = p_time
            WHERE t.namespace_id = p_namespace AND t.thread_id = r.id
            RETURNING t.session_key, t.thread_id, t.fence
        )
        INSERT INTO log (namespace_id, position, record_kind, record_id, time, session_key, agent_key, thread_event)
        SELECT p_namespace, r.position + r.ord, 2, gen_random_uuid(), p_time, e.session_key, p_agent,
               jsonb_build_object('thread_id', e.thread_id, 'type', r.how, 'episode_id', r.record_id, 'fence', e.fence)
        FROM ended e;
    END LOOP;
END
$$;
