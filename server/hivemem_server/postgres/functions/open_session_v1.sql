-- open_session_v1: makes a session, or finds the one there. Takes the namespace's lock, because keys are drawn under it.
--
-- Returns the outcome (CREATED, FOUND, or a reason of the contract). A session that is there is not changed; who names
-- no user finds it whoever its user is.
CREATE FUNCTION open_session_v1(
    p_namespace int, p_session text, p_user text, p_goal text, p_labels jsonb, p_continues text
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
    v_continues int;
    v_now timestamptz;
BEGIN
    PERFORM FROM namespaces n WHERE n.namespace_id = p_namespace AND n.name IS NOT NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'NAMESPACE_NOT_FOUND';
    END IF;
    SELECT s.user_id INTO v_user FROM sessions s WHERE s.namespace_id = p_namespace AND s.session_id = p_session;
    IF FOUND THEN
        RETURN CASE WHEN p_user IN ('', v_user) THEN 'FOUND' ELSE 'SESSION_EXISTS' END;
    END IF;
    IF p_continues <> '' THEN
        SELECT s.session_key INTO v_continues
        FROM sessions s WHERE s.namespace_id = p_namespace AND s.session_id = p_continues AND s.user_id = p_user;
        IF NOT FOUND THEN
            RETURN 'SESSION_NOT_FOUND';
        END IF;
    END IF;
    v_now := clock_timestamp();
    INSERT INTO sessions (namespace_id, session_key, session_id, user_id, goal, labels, state, continues_key,
                          created_time, updated_time)
    SELECT p_namespace, coalesce(max(s.session_key), 0) + 1, p_session, p_user, p_goal, p_labels, 1, v_continues,
           v_now, v_now
    FROM sessions s WHERE s.namespace_id = p_namespace;
    RETURN 'CREATED';
END
$$;
