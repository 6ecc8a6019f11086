"""SessionService."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from hivemem.v1 import agent_service_pb2
from hivemem.v1 import session_service_pb2 as pb

from hivemem_server.domain import limits
from hivemem_server.domain.filters import SessionFilter
from hivemem_server.domain.ports import LogStore, NamespaceStore, ResumeStore, SessionStore
from hivemem_server.domain.redactors import redactor_of
from hivemem_server.domain.resume import (
    AgentSeen,
    PlanProgress,
    ResumeMaterial,
    ResumeMessages,
    ResumeTarget,
    SessionSummary,
    build_messages,
)
from hivemem_server.domain.validation import Violations, check_labels, check_session, check_session_filter, page_size
from hivemem_server.domain.values import Namespace, Session, SessionState, StandingDecision
from hivemem_server.log.cursors import decode_cursor, encode_cursor, verified
from hivemem_server.rpc import convert, threads
from hivemem_server.rpc.namespaces import masked, namespace_name
from hivemem_server.rpc.pages import fitting, page_key, page_token, section

LISTS = ("continued_sessions", "episodes", "decisions", "open_threads", "plans", "summaries", "agents")


class SessionServicer:
    """Serves SessionService."""

    def __init__(self, namespaces: NamespaceStore, sessions: SessionStore, resume: ResumeStore, log: LogStore) -> None:
        self._namespaces = namespaces
        self._sessions = sessions
        self._resume = resume
        self._log = log

    async def create_session(self, request: pb.CreateSessionRequest) -> pb.CreateSessionResponse:
        """Makes a session, or returns the one there."""
        name = namespace_name(request.namespace)
        labels = dict(request.labels)
        check_session(request.session_id, request.user_id, request.goal, labels, request.continues_session_id)
        namespace = await self._namespaces.resolve(name)
        clean = redactor_of(namespace).redact
        session, created = await self._sessions.open(
            namespace,
            request.session_id,
            user_id=request.user_id,
            goal=clean(request.goal),
            labels={clean(key): clean(value) for key, value in labels.items()},
            continues_session_id=request.continues_session_id,
        )
        return pb.CreateSessionResponse(session=message(name, session), created=created)

    async def get_session(self, request: pb.GetSessionRequest) -> pb.GetSessionResponse:
        """Returns one session."""
        namespace = await self._namespace(request.namespace, request.session_id)
        session = await self._sessions.get(namespace, request.session_id)
        return pb.GetSessionResponse(session=message(namespace.name, session))

    async def list_sessions(self, request: pb.ListSessionsRequest) -> pb.ListSessionsResponse:
        """Lists sessions, newest first."""
        name = namespace_name(request.namespace)
        wanted = _session_filter(request)
        key = page_key(request)
        size = page_size(request.page_size)
        found = await self._sessions.page(
            await self._namespaces.resolve(name), wanted, int(key[0]) if key else 0, size + 1
        )
        shown = fitting([message(name, session) for _, session in found[:size]])
        more = [found[len(shown) - 1][0]] if len(found) > len(shown) else ()
        return pb.ListSessionsResponse(sessions=shown, next_page_token=page_token(request, more))

    async def update_session(self, request: pb.UpdateSessionRequest) -> pb.UpdateSessionResponse:
        """Changes goal or labels."""
        namespace = await self._namespace(request.namespace, request.session_id)
        found = Violations()
        found.text("goal", request.goal, limits.TEXT_BYTES)
        check_labels(found, "labels", request.labels)
        paths = masked(found, request, request, ("goal", "labels"))
        found.done()
        clean = redactor_of(namespace).redact
        labels = {clean(key): clean(value) for key, value in request.labels.items()}
        session = await self._sessions.update(
            namespace,
            request.session_id,
            goal=clean(request.goal) if "goal" in paths else None,
            labels=labels if "labels" in paths else None,
        )
        return pb.UpdateSessionResponse(session=message(namespace.name, session))

    async def close_session(self, request: pb.CloseSessionRequest) -> pb.CloseSessionResponse:
        """Closes a session."""
        namespace = await self._namespace(request.namespace, request.session_id)
        session = await self._sessions.close(namespace, request.session_id)
        return pb.CloseSessionResponse(session=message(namespace.name, session))

    async def resume_session(self, request: pb.ResumeSessionRequest) -> pb.ResumeSessionResponse:
        """Returns what an agent needs to go on where a session stopped."""
        _check_resume(request)
        namespace = await self._namespaces.resolve(namespace_name(request.namespace))
        material = await self._resume.material(namespace, await self._target(namespace, request))
        messages = build_messages(
            material,
            max_tokens=request.max_tokens or limits.DEFAULT_RESUME_TOKENS,
            injected=request.max_injected_summaries or limits.DEFAULT_INJECTED_SUMMARIES,
            agent_id=request.agent_id,
        )
        return _resumed(namespace, material, messages)

    async def _target(self, namespace: Namespace, request: pb.ResumeSessionRequest) -> ResumeTarget:
        since = None
        if request.since_cursor:
            point = await verified(self._log, namespace, decode_cursor(namespace, request.since_cursor))
            since = point.position
        return ResumeTarget(
            session_id=request.session_id,
            user_id=request.user_id,
            max_episodes=request.max_episodes or limits.DEFAULT_RESUME_EPISODES,
            max_summaries=request.max_summaries or limits.DEFAULT_RESUME_SUMMARIES,
            since=since,
        )

    async def _namespace(self, name: str, session_id: str) -> Namespace:
        found = Violations()
        found.identifier("session_id", session_id)
        found.done()
        return await self._namespaces.resolve(namespace_name(name))


def _session_filter(request: pb.ListSessionsRequest) -> SessionFilter:
    found = Violations()
    state = None
    if request.state:
        if int(request.state) in set(SessionState):
            state = SessionState(request.state)
        else:
            found.add("state", "is not a state that this server knows")
    labels = tuple(sorted(request.labels.items()))
    wanted = SessionFilter(user_ids=tuple(request.user_ids), state=state, labels=labels)
    check_session_filter(found, wanted)
    found.done()
    return wanted


def _check_resume(request: pb.ResumeSessionRequest) -> None:
    found = Violations()
    target = request.WhichOneof("target")
    if target is None:
        found.add("target", "session_id or user_id is required")
    else:
        found.identifier(target, getattr(request, target))
    found.identifier("agent_id", request.agent_id, required=False)
    found.between("max_episodes", request.max_episodes, 0, limits.RESUME_EPISODES)
    found.between("max_summaries", request.max_summaries, 0, limits.RESUME_SUMMARIES)
    found.between("max_injected_summaries", request.max_injected_summaries, 0, limits.RESUME_SUMMARIES)
    if request.max_tokens:
        found.between("max_tokens", request.max_tokens, limits.RESUME_TOKENS, limits.MOST_RESUME_TOKENS)
    found.done()


def message(namespace: str, session: Session) -> pb.Session:
    """A session as a message."""
    made = pb.Session(
        namespace=namespace,
        session_id=session.session_id,
        user_id=session.user_id,
        goal=session.goal,
        labels=session.labels,
        state=pb.SessionState.ValueType(int(session.state)),
        continues_session_id=session.continues_session_id,
        create_time=convert.stamp(session.create_time),
        update_time=convert.stamp(session.update_time),
        last_position=session.last_position,
    )
    if session.close_time:
        made.close_time.CopyFrom(convert.stamp(session.close_time))
    if session.last_episode_time:
        made.last_episode_time.CopyFrom(convert.stamp(session.last_episode_time))
    return made


def _resumed(namespace: Namespace, material: ResumeMaterial, built: ResumeMessages) -> pb.ResumeSessionResponse:
    response = pb.ResumeSessionResponse(
        continued_sessions=section(message(namespace.name, session) for session in material.continued_sessions),
        episodes=section(map(convert.episode, reversed(material.episodes)))[::-1],
        decisions=section(map(_standing, reversed(material.decisions)))[::-1],
        open_threads=section(map(threads.message, material.open_threads)),
        plans=map(_plan, material.plans),
        summaries=section(map(_summary, material.summaries)),
        agents=map(_agent, material.agents),
        messages=[
            pb.ResumeMessage(role=pb.MessageRole.ValueType(int(one.role)), content=one.content)
            for one in built.messages
        ],
        token_count=built.token_count,
        position=material.head.position,
        cursor=encode_cursor(namespace, material.head),
    )
    if material.session:
        response.session.CopyFrom(message(namespace.name, material.session))
    _add_away(response, material)
    _add_omissions(response, material, built)
    return response


def _plan(value: PlanProgress) -> pb.PlanProgress:
    return pb.PlanProgress(
        plan_id=value.plan_id,
        current_step=value.current_step,
        total_steps=value.total_steps,
        resolved_steps=value.resolved_steps,
    )


def _summary(value: SessionSummary) -> pb.SessionSummary:
    return pb.SessionSummary(
        session_id=value.session_id,
        goal=value.goal,
        summary=value.summary,
        position=value.position,
        time=convert.stamp(value.time),
    )


def _add_away(response: pb.ResumeSessionResponse, material: ResumeMaterial) -> None:
    away = material.away
    if away is None:
        return
    highlights = [one for one in material.episodes if one.position > away.since_position]
    response.away.CopyFrom(
        pb.AwayReport(
            since_position=away.since_position,
            episode_count=sum(away.episode_counts.values()),
            episode_counts=_most(away.episode_counts),
            opened_thread_count=away.opened_threads,
            ended_thread_count=away.ended_threads,
            highlights=section(map(convert.episode, reversed(highlights)))[::-1],
        )
    )


def _most(counts: Mapping[str, int]) -> dict[str, int]:
    """The largest of the counts, as many as a list may have."""
    return dict(heapq.nlargest(limits.RESUME_ITEMS, counts.items(), key=lambda item: item[1]))


def _add_omissions(response: pb.ResumeSessionResponse, material: ResumeMaterial, built: ResumeMessages) -> None:
    """Names what did not fit into the messages, and as `listed_…` what the lists lack of what is stored."""
    counts = dict(built.omitted)
    for name in LISTS:
        stored = len(getattr(material, name)) + material.left_out.get(name, 0)
        counts[f"listed_{name}"] = stored - len(getattr(response, name))
    response.omitted.extend(pb.Omission(what=what, count=count) for what, count in sorted(counts.items()) if count)


def _standing(value: StandingDecision) -> pb.StandingDecision:
    return pb.StandingDecision(
        decision=convert.decision(value.decision),
        agent_id=value.agent_id,
        session_id=value.session_id,
        position=value.position,
        episode_id=str(value.episode_id),
        time=convert.stamp(value.time),
    )


def _agent(value: AgentSeen) -> agent_service_pb2.Agent:
    return agent_service_pb2.Agent(
        agent_id=value.agent_id,
        create_time=convert.stamp(value.create_time),
        last_seen_time=convert.stamp(value.last_seen_time),
        last_position=value.last_position,
    )
