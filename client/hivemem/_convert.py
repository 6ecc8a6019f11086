"""Between the messages of the contract and the models: the one place that knows both.

Functions named after a model read it from its message; functions that end in `_message` write one. Reading
an episode is the hot path of catching up, so it takes no detour.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2

from hivemem import _errors, _models
from hivemem.v1 import (
    admin_service_pb2,
    agent_service_pb2,
    episode_service_pb2,
    error_reason_pb2,
    namespace_service_pb2,
    search_service_pb2,
    session_service_pb2,
    thread_service_pb2,
    types_pb2,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from google.protobuf.any_pb2 import Any as Any_
    from google.protobuf.message import Message

Word = TypeVar("Word", bound=enum.StrEnum)
Value = TypeVar("Value")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Words(Generic[Word]):
    """One enum in both forms: the words are the contract's names without their prefix, in small letters."""

    def __init__(self, words: type[Word], numbers: Any, prefix: str) -> None:
        self._words = words
        self._numbers = {name.removeprefix(prefix).lower(): number for name, number in numbers.items()}
        self._by_number = {self._numbers[word]: word for word in words if word in self._numbers}

    def read(self, number: int) -> Word:
        """The word for a number; `unknown` for one that only a newer server knows."""
        return self._by_number.get(number) or self._words("unknown")

    def write(self, word: Word | str) -> Any:
        """The number for a word."""
        return self._numbers.get(self._words(word), 0)


_session_states = _Words(_models.SessionState, session_service_pb2.SessionState, "SESSION_STATE_")
_thread_states = _Words(_models.ThreadState, thread_service_pb2.ThreadState, "THREAD_STATE_")
_thread_orders = _Words(_models.ThreadOrder, thread_service_pb2.ThreadOrder, "THREAD_ORDER_")
_thread_event_types = _Words(_models.ThreadEventType, types_pb2.ThreadEventType, "THREAD_EVENT_TYPE_")
_removal_reasons = _Words(_models.RemovalReason, types_pb2.RemovalReason, "REMOVAL_REASON_")
_record_kinds = _Words(_models.RecordKind, types_pb2.RecordKind, "RECORD_KIND_")
_presences = _Words(_models.Presence, agent_service_pb2.Presence, "PRESENCE_")
_shortfalls = _Words(_models.Shortfall, search_service_pb2.Shortfall, "SHORTFALL_")
_roles = _Words(_models.MessageRole, session_service_pb2.MessageRole, "MESSAGE_ROLE_")
_operators = _Words(_models.AttributeOperator, types_pb2.AttributeOperator, "ATTRIBUTE_OPERATOR_")


# ---- small things ------------------------------------------------------------------------------------------


def time(stamp: Timestamp) -> datetime:
    """An aware datetime, cut to microseconds."""
    return _EPOCH + timedelta(0, stamp.seconds, stamp.nanos // 1000)


def time_or_none(message: Message, field: str) -> datetime | None:
    """The time in a field that may be unset."""
    return time(getattr(message, field)) if message.HasField(field) else None


def time_message(moment: datetime | None) -> Timestamp | None:
    """A timestamp; None stays unset."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone: pass an aware time, as datetime.now(UTC) is")
    since = moment - _EPOCH
    return Timestamp(seconds=since.days * 86_400 + since.seconds, nanos=since.microseconds * 1000)


def duration(message: Duration) -> timedelta:
    """A timedelta, cut to microseconds."""
    return timedelta(0, message.seconds, message.nanos // 1000)


def duration_message(span: timedelta | float | None) -> Duration | None:
    """A duration from a timedelta or from seconds; None stays unset."""
    if span is None:
        return None
    message = Duration()
    message.FromTimedelta(span if isinstance(span, timedelta) else timedelta(seconds=span))
    return message


def listed(name: str, values: Iterable[Value]) -> list[Value]:
    """The values as a list. One string alone is refused: it would be taken apart into letters."""
    if isinstance(values, str):
        raise TypeError(f"{name} takes a list: [{values!r}]")
    return list(values)


def attributes(values: Mapping[str, types_pb2.AttributeValue]) -> dict[str, _models.AttributeValue]:
    """Typed values by key. A value of a type that only a newer server knows is left out."""
    found: dict[str, _models.AttributeValue] = {}
    for key, value in values.items():
        if kind := value.WhichOneof("kind"):
            found[key] = getattr(value, kind)
    return found


def attribute_message(value: _models.AttributeValue) -> types_pb2.AttributeValue:
    """One typed value."""
    if isinstance(value, bool):
        return types_pb2.AttributeValue(bool_value=value)
    if isinstance(value, int):
        return types_pb2.AttributeValue(int_value=value)
    if isinstance(value, float):
        return types_pb2.AttributeValue(double_value=value)
    if isinstance(value, str):
        return types_pb2.AttributeValue(string_value=value)
    raise TypeError(f"an attribute is a str, int, float or bool, not {type(value).__name__}: {value!r}")


# ---- writing -----------------------------------------------------------------------------------------------


def _decision_message(decision: str | _models.NewDecision) -> types_pb2.NewDecision:
    if isinstance(decision, str):
        return types_pb2.NewDecision(text=decision)
    return types_pb2.NewDecision(
        decision_id=decision.decision_id or "", text=decision.text, supersedes=listed("supersedes", decision.supersedes)
    )


def _thread_message(thread: str | _models.NewThread) -> types_pb2.NewThread:
    if isinstance(thread, str):
        return types_pb2.NewThread(text=thread)
    return types_pb2.NewThread(
        thread_id=thread.thread_id or "",
        text=thread.text,
        priority=thread.priority,
        tags=listed("tags", thread.tags),
        plan_id=thread.plan_id or "",
        step=thread.step or 0,
    )


def _reference_message(reference: str | _models.ThreadReference) -> types_pb2.ThreadReference:
    if isinstance(reference, str):
        return types_pb2.ThreadReference(thread_id=reference)
    return types_pb2.ThreadReference(thread_id=reference.thread_id, fence=reference.fence or 0)


def _reference_messages(
    name: str, references: Iterable[str | _models.ThreadReference]
) -> list[types_pb2.ThreadReference]:
    return [_reference_message(reference) for reference in listed(name, references)]


def new_episode_message(episode: _models.NewEpisode) -> types_pb2.NewEpisode:
    """An episode to be appended."""
    return types_pb2.NewEpisode(
        episode_id=episode.episode_id,
        turn=episode.turn or 0,
        summary=episode.summary,
        kind=episode.kind or "",
        tags=listed("tags", episode.tags),
        attributes={key: attribute_message(value) for key, value in episode.attributes.items()},
        event_time=time_message(episode.event_time),
        decisions=[_decision_message(decision) for decision in listed("decisions", episode.decisions)],
        open_threads=[_thread_message(thread) for thread in listed("open_threads", episode.open_threads)],
        resolves=_reference_messages("resolves", episode.resolves),
        drops=_reference_messages("drops", episode.drops),
        supersedes_threads=_reference_messages("supersedes_threads", episode.supersedes_threads),
        to_agents=listed("to_agents", episode.to_agents),
    )


def expectation_message(expect: _models.Expectation | None) -> episode_service_pb2.Expectation | None:
    """What the writer believes of the stream; None stays unset."""
    belief = episode_service_pb2.Expectation
    match expect:
        case None:
            return None
        case _models.NoStream():
            return belief(no_stream=belief.NoStream())
        case _models.StreamExists():
            return belief(stream_exists=belief.StreamExists())
        case _models.Revision(revision):
            return belief(revision=revision)
    raise TypeError(f"expect takes NoStream(), StreamExists() or Revision(n), not {expect!r}")


def condition_message(condition: _models.AppendCondition) -> episode_service_pb2.AppendCondition:
    """A condition of an append."""
    return episode_service_pb2.AppendCondition(
        filter=filter_message(condition.filter), after_position=condition.after_position
    )


# ---- choosing ----------------------------------------------------------------------------------------------


def _predicate_message(predicate: _models.AttributePredicate) -> types_pb2.AttributePredicate:
    return types_pb2.AttributePredicate(
        key=predicate.key,
        operator=_operators.write(predicate.operator),
        values=[attribute_message(value) for value in listed("values", predicate.values)],
    )


def _time_range_message(span: _models.TimeRange | None) -> types_pb2.TimeRange | None:
    if span is None:
        return None
    return types_pb2.TimeRange(start_time=time_message(span.start_time), end_time=time_message(span.end_time))


def _position_range_message(span: _models.PositionRange | None) -> types_pb2.PositionRange | None:
    if span is None:
        return None
    return types_pb2.PositionRange(after=span.after, through=span.through or 0)


def filter_message(chosen: _models.Filter) -> types_pb2.Filter:
    """Which log records are meant."""
    return types_pb2.Filter(
        session_ids=listed("session_ids", chosen.session_ids),
        agent_ids=listed("agent_ids", chosen.agent_ids),
        exclude_agent_ids=listed("exclude_agent_ids", chosen.exclude_agent_ids),
        user_ids=listed("user_ids", chosen.user_ids),
        kinds=listed("kinds", chosen.kinds),
        any_tags=listed("any_tags", chosen.any_tags),
        all_tags=listed("all_tags", chosen.all_tags),
        to_agents=listed("to_agents", chosen.to_agents),
        attributes=[_predicate_message(predicate) for predicate in chosen.attributes],
        commit_time=_time_range_message(chosen.commit_time),
        event_time=_time_range_message(chosen.event_time),
        positions=_position_range_message(chosen.positions),
    )


def start_message(after: bytes | int | datetime | _models.Start) -> types_pb2.StartPoint:
    """Where a reader starts: after a cursor, a position or a time, or at one of the named points."""
    point = types_pb2.StartPoint
    match after:
        case _models.Start.NOW:
            return point(now=point.Now())
        case _models.Start.BEGINNING:
            return point(beginning=point.Beginning())
        case bytes():
            return point(cursor=after)
        case int():
            return point(position=after)
        case datetime():
            return point(time=time_message(after))
    raise TypeError(f"after takes a cursor (bytes), a position (int) or a time (datetime), not {after!r}")


def record_kind_numbers(kinds: Iterable[_models.RecordKind | str]) -> list[types_pb2.RecordKind.ValueType]:
    """Kinds of log records."""
    return [_record_kinds.write(kind) for kind in listed("record_kinds", kinds)]


def relevance_message(relevant_to: str | None, min_score: float | None) -> episode_service_pb2.RelevanceQuery | None:
    """A standing query; None stays unset."""
    if relevant_to is None:
        if min_score is not None:
            raise TypeError("min_score says how close to relevant_to: give both, or neither")
        return None
    return episode_service_pb2.RelevanceQuery(relevant_to=relevant_to, min_score=min_score)


def session_state_number(state: _models.SessionState | str | None) -> session_service_pb2.SessionState.ValueType:
    """State of a session; None is any."""
    number: session_service_pb2.SessionState.ValueType = _session_states.write(state or _models.SessionState.UNKNOWN)
    return number


def thread_state_numbers(states: Iterable[_models.ThreadState | str]) -> list[thread_service_pb2.ThreadState.ValueType]:
    """States of threads."""
    return [_thread_states.write(state) for state in listed("states", states)]


def thread_order_number(order: _models.ThreadOrder | str) -> thread_service_pb2.ThreadOrder.ValueType:
    """Order of a list of threads."""
    number: thread_service_pb2.ThreadOrder.ValueType = _thread_orders.write(order)
    return number


def search_options_message(options: _models.SearchOptions | None) -> search_service_pb2.SearchOptions | None:
    """How parts of the score weigh; None stays unset."""
    if options is None:
        return None
    return search_service_pb2.SearchOptions(
        lexical_weight=options.lexical_weight,
        vector_weight=options.vector_weight,
        neighbour_weight=options.neighbour_weight,
        session_weight=options.session_weight,
        agent_weight=options.agent_weight,
        recency_weight=options.recency_weight,
        recency_half_life=duration_message(options.recency_half_life),
        demote_superseded=options.demote_superseded,
    )


# ---- episodes and the log ----------------------------------------------------------------------------------


def appended(response: episode_service_pb2.AppendEpisodesResponse) -> tuple[_models.Appended, ...]:
    """Where the episodes of one call were stored, in the order sent."""
    return tuple(
        _models.Appended(
            episode_id=stored.episode_id,
            position=stored.position,
            revision=stored.revision,
            commit_time=time(stored.commit_time),
            decision_ids=tuple(stored.decision_ids),
            thread_ids=tuple(stored.thread_ids),
            deduplicated=response.deduplicated,
        )
        for stored in response.episodes
    )


def decision(message: types_pb2.Decision) -> _models.Decision:
    """A decision as it was recorded."""
    return _models.Decision(
        decision_id=message.decision_id,
        text=message.text,
        supersedes=tuple(message.supersedes) if message.supersedes else (),
    )


def _open_thread(message: types_pb2.OpenThread) -> _models.OpenThread:
    return _models.OpenThread(
        thread_id=message.thread_id,
        text=message.text,
        priority=message.priority,
        tags=tuple(message.tags) if message.tags else (),
        plan_id=message.plan_id or None,
        step=message.step or None,
    )


def _reference(message: types_pb2.ThreadReference) -> _models.ThreadReference:
    return _models.ThreadReference(thread_id=message.thread_id, fence=message.fence or None)


def episode(message: types_pb2.Episode) -> _models.Episode:
    """An episode as it is stored. (Iterating over an empty list costs four times as much as asking for its length.)"""
    return _models.Episode(
        episode_id=message.episode_id,
        position=message.position,
        session_id=message.session_id,
        agent_id=message.agent_id,
        revision=message.revision,
        turn=message.turn or None,
        summary=message.summary,
        kind=message.kind,
        tags=tuple(message.tags) if message.tags else (),
        attributes=attributes(message.attributes) if message.attributes else {},
        event_time=time(message.event_time) if message.HasField("event_time") else None,
        commit_time=time(message.commit_time),
        decisions=tuple(map(decision, message.decisions)) if message.decisions else (),
        open_threads=tuple(map(_open_thread, message.open_threads)) if message.open_threads else (),
        resolves=tuple(map(_reference, message.resolves)) if message.resolves else (),
        drops=tuple(map(_reference, message.drops)) if message.drops else (),
        supersedes_threads=tuple(map(_reference, message.supersedes_threads)) if message.supersedes_threads else (),
        to_agents=tuple(message.to_agents) if message.to_agents else (),
    )


def episodes(messages: Iterable[types_pb2.Episode]) -> tuple[_models.Episode, ...]:
    """Episodes in the order given."""
    return tuple(map(episode, messages))


def episode_with_neighbours(response: episode_service_pb2.GetEpisodeResponse) -> _models.EpisodeWithNeighbours:
    """One episode with its neighbours."""
    return _models.EpisodeWithNeighbours(
        before=episodes(response.before), episode=episode(response.episode), after=episodes(response.after)
    )


def _thread_event(message: types_pb2.ThreadEvent) -> _models.ThreadEvent:
    return _models.ThreadEvent(
        thread_id=message.thread_id,
        type=_thread_event_types.read(message.type),
        session_id=message.session_id,
        agent_id=message.agent_id,
        episode_id=message.episode_id or None,
        fence=message.fence or None,
        expire_time=time_or_none(message, "expire_time"),
        note=message.note,
    )


def _fact_change(message: types_pb2.FactChange) -> _models.FactChange:
    return _models.FactChange(
        key=message.key,
        user_id=message.user_id or None,
        version=message.version,
        deleted=message.deleted,
        agent_id=message.agent_id,
    )


def _removal(message: types_pb2.Removal) -> _models.Removal:
    return _models.Removal(
        removed_position=message.removed_position,
        episode_id=message.episode_id or None,
        reason=_removal_reasons.read(message.reason),
    )


_RECORDS: dict[str, tuple[_models.RecordKind, Any]] = {
    "episode": (_models.RecordKind.EPISODE, episode),
    "thread_event": (_models.RecordKind.THREAD_EVENT, _thread_event),
    "fact_changed": (_models.RecordKind.FACT_CHANGED, _fact_change),
    "removed": (_models.RecordKind.REMOVED, _removal),
}


def log_record(message: types_pb2.LogRecord) -> _models.LogRecord | None:
    """What the log holds at one position; None for a kind that only a newer server knows."""
    field = message.WhichOneof("record")
    if field is None:
        return None
    kind, convert = _RECORDS[field]
    return _models.LogRecord(
        position=message.position,
        time=time(message.time),
        score=message.score if message.HasField("score") else None,
        kind=kind,
        record=convert(getattr(message, field)),
    )


def batch(response: episode_service_pb2.WaitEpisodesResponse) -> _models.Batch:
    """What came of a wait."""
    return _models.Batch(
        records=tuple(record for record in map(log_record, response.records) if record is not None),
        cursor=response.cursor,
        position=response.position,
        head_position=response.head_position,
    )


def named_cursor(name: str, response: episode_service_pb2.GetCursorResponse) -> _models.NamedCursor:
    """The cursor that is stored under a name."""
    return _models.NamedCursor(
        name=name, cursor=response.cursor, position=response.position, commit_time=time(response.commit_time)
    )


# ---- threads, sessions, agents -----------------------------------------------------------------------------


def _claim(message: thread_service_pb2.Claim) -> _models.Claim:
    return _models.Claim(
        agent_id=message.agent_id,
        fence=message.fence,
        lease_duration=duration(message.lease_duration),
        claim_time=time(message.claim_time),
        expire_time=time(message.expire_time),
    )


def thread(message: thread_service_pb2.Thread) -> _models.Thread:
    """Unfinished business, in its state of now."""
    return _models.Thread(
        thread_id=message.thread_id,
        text=message.text,
        state=_thread_states.read(message.state),
        priority=message.priority,
        tags=tuple(message.tags),
        plan_id=message.plan_id or None,
        step=message.step or None,
        session_id=message.session_id,
        user_id=message.user_id or None,
        agent_id=message.agent_id,
        episode_id=message.episode_id,
        position=message.position,
        open_time=time(message.open_time),
        claim=_claim(message.claim) if message.HasField("claim") else None,
        ended_by_agent_id=message.ended_by_agent_id or None,
        ended_by_episode_id=message.ended_by_episode_id or None,
        end_time=time_or_none(message, "end_time"),
        superseded=message.superseded,
    )


def session_info(message: session_service_pb2.Session) -> _models.SessionInfo:
    """What is known of a session."""
    return _models.SessionInfo(
        namespace=message.namespace,
        session_id=message.session_id,
        user_id=message.user_id or None,
        goal=message.goal,
        labels=dict(message.labels),
        state=_session_states.read(message.state),
        continues_session_id=message.continues_session_id or None,
        create_time=time(message.create_time),
        update_time=time(message.update_time),
        close_time=time_or_none(message, "close_time"),
        last_position=message.last_position,
        last_episode_time=time_or_none(message, "last_episode_time"),
    )


def _agent_info(message: agent_service_pb2.Agent) -> _models.AgentInfo:
    return _models.AgentInfo(
        agent_id=message.agent_id,
        role=message.role,
        capabilities=tuple(message.capabilities),
        metadata=attributes(message.metadata),
        presence=_presences.read(message.presence),
        create_time=time_or_none(message, "create_time"),
        last_seen_time=time_or_none(message, "last_seen_time"),
        last_position=message.last_position,
    )


# ---- search ------------------------------------------------------------------------------------------------


def _explanation(message: search_service_pb2.ScoreExplanation) -> _models.ScoreExplanation:
    return _models.ScoreExplanation(
        lexical=message.lexical,
        vector=message.vector,
        neighbours=message.neighbours,
        session=message.session,
        agent=message.agent,
        recency=message.recency,
        superseded=message.superseded,
    )


def _hit(message: search_service_pb2.SearchHit) -> _models.SearchHit:
    return _models.SearchHit(
        episode=episode(message.episode),
        score=message.score,
        snippet=message.snippet,
        explanation=_explanation(message.explanation) if message.HasField("explanation") else None,
        superseded=message.superseded,
    )


def search_result(response: search_service_pb2.SearchEpisodesResponse) -> _models.SearchResult:
    """Hits, best first, with what is to be known about them."""
    return _models.SearchResult(
        hits=tuple(map(_hit, response.hits)),
        indexed_position=response.indexed_position,
        head_position=response.head_position,
        model=response.model or None,
        shortfalls=tuple(map(_shortfalls.read, response.shortfalls)),
    )


# ---- resume ------------------------------------------------------------------------------------------------


def _standing_decision(message: session_service_pb2.StandingDecision) -> _models.StandingDecision:
    return _models.StandingDecision(
        decision=decision(message.decision),
        agent_id=message.agent_id,
        session_id=message.session_id,
        position=message.position,
        episode_id=message.episode_id,
        time=time(message.time),
    )


def _session_summary(message: session_service_pb2.SessionSummary) -> _models.SessionSummary:
    return _models.SessionSummary(
        session_id=message.session_id,
        goal=message.goal,
        summary=message.summary,
        position=message.position,
        time=time(message.time),
    )


def _plan_progress(message: session_service_pb2.PlanProgress) -> _models.PlanProgress:
    return _models.PlanProgress(
        plan_id=message.plan_id,
        current_step=message.current_step or None,
        total_steps=message.total_steps,
        resolved_steps=message.resolved_steps,
    )


def _away(message: session_service_pb2.AwayReport) -> _models.AwayReport:
    return _models.AwayReport(
        since_position=message.since_position,
        episode_count=message.episode_count,
        episode_counts=dict(message.episode_counts),
        opened_thread_count=message.opened_thread_count,
        ended_thread_count=message.ended_thread_count,
        highlights=episodes(message.highlights),
    )


def _message(message: session_service_pb2.ResumeMessage) -> _models.Message:
    return _models.Message(role=_roles.read(message.role), content=message.content)


def _omission(message: session_service_pb2.Omission) -> _models.Omission:
    return _models.Omission(what=message.what, count=message.count)


def resumed(response: session_service_pb2.ResumeSessionResponse) -> _models.Resumed:
    """What an agent needs to go on."""
    return _models.Resumed(
        session=session_info(response.session) if response.HasField("session") else None,
        continued_sessions=tuple(map(session_info, response.continued_sessions)),
        episodes=episodes(response.episodes),
        decisions=tuple(map(_standing_decision, response.decisions)),
        open_threads=tuple(map(thread, response.open_threads)),
        plans=tuple(map(_plan_progress, response.plans)),
        agents=tuple(map(_agent_info, response.agents)),
        summaries=tuple(map(_session_summary, response.summaries)),
        away=_away(response.away) if response.HasField("away") else None,
        messages=tuple(map(_message, response.messages)),
        token_count=response.token_count,
        omitted=tuple(map(_omission, response.omitted)),
        position=response.position,
        cursor=response.cursor,
    )


# ---- namespaces and numbers --------------------------------------------------------------------------------


def namespace_settings_message(settings: _models.NamespaceSettings) -> namespace_service_pb2.NamespaceSettings:
    """What the owner of a namespace decides. Groups that say nothing stay unset."""
    return namespace_service_pb2.NamespaceSettings(
        description=settings.description,
        labels=settings.labels,
        text_language=settings.text_language or "",
        redaction=_redaction_message(settings.redaction),
        retention=_retention_message(settings.retention),
        quota=_quota_message(settings.quota),
    )


def _redaction_message(rules: _models.RedactionSettings) -> namespace_service_pb2.RedactionSettings | None:
    if rules == _models.RedactionSettings():
        return None
    return namespace_service_pb2.RedactionSettings(
        enabled=rules.enabled, kinds=listed("kinds", rules.kinds), patterns=listed("patterns", rules.patterns)
    )


def _retention_message(rules: _models.RetentionSettings) -> namespace_service_pb2.RetentionSettings | None:
    if rules == _models.RetentionSettings():
        return None
    return namespace_service_pb2.RetentionSettings(
        max_age=duration_message(rules.max_age), max_episodes=rules.max_episodes or 0
    )


def _quota_message(rules: _models.QuotaSettings) -> namespace_service_pb2.QuotaSettings | None:
    if rules == _models.QuotaSettings():
        return None
    return namespace_service_pb2.QuotaSettings(
        max_episodes=rules.max_episodes or 0, max_sessions=rules.max_sessions or 0
    )


def _namespace_settings(message: namespace_service_pb2.NamespaceSettings) -> _models.NamespaceSettings:
    redaction, retention, quota = message.redaction, message.retention, message.quota
    return _models.NamespaceSettings(
        description=message.description,
        labels=dict(message.labels),
        text_language=message.text_language or None,
        redaction=_models.RedactionSettings(
            enabled=redaction.enabled if redaction.HasField("enabled") else None,
            kinds=tuple(redaction.kinds),
            patterns=tuple(redaction.patterns),
        ),
        retention=_models.RetentionSettings(
            max_age=duration(retention.max_age) if retention.HasField("max_age") else None,
            max_episodes=retention.max_episodes or None,
        ),
        quota=_models.QuotaSettings(max_episodes=quota.max_episodes or None, max_sessions=quota.max_sessions or None),
    )


def namespace_info(message: namespace_service_pb2.Namespace) -> _models.NamespaceInfo:
    """One namespace with its bounds."""
    return _models.NamespaceInfo(
        name=message.name,
        settings=_namespace_settings(message.settings),
        first_position=message.first_position,
        head_position=message.head_position,
        log_epoch=message.log_epoch,
        create_time=time(message.create_time),
        update_time=time(message.update_time),
    )


def _index_stats(message: admin_service_pb2.IndexStats) -> _models.IndexStats:
    return _models.IndexStats(
        model=message.model,
        dimension=message.dimension,
        indexed_position=message.indexed_position,
        vector_count=message.vector_count,
        set_aside_count=message.set_aside_count,
        current=message.current,
    )


def _server_stats(message: admin_service_pb2.ServerStats) -> _models.ServerStats:
    return _models.ServerStats(
        version=message.version,
        replica_id=message.replica_id,
        start_time=time_or_none(message, "start_time"),
        database_version=message.database_version,
        embedded_database=message.embedded_database,
        database_bytes=message.database_bytes,
        subscription_count=message.subscription_count,
        pending_append_count=message.pending_append_count,
    )


def stats(response: admin_service_pb2.GetStatsResponse) -> _models.Stats:
    """Numbers about a namespace and the server."""
    return _models.Stats(
        namespace=namespace_info(response.namespace),
        session_count=response.session_count,
        open_session_count=response.open_session_count,
        agent_count=response.agent_count,
        episode_count=response.episode_count,
        open_thread_count=response.open_thread_count,
        fact_count=response.fact_count,
        indexes=tuple(map(_index_stats, response.indexes)),
        server=_server_stats(response.server),
    )


# ---- errors ------------------------------------------------------------------------------------------------


def status_error(status: str, text: str, details: bytes | None) -> _errors.HivememError:
    """The exception for a gRPC status, by the reason in its details (a google.rpc.Status) if there is one."""
    info, violations, retry_delay = error_details_pb2.ErrorInfo(), [], None
    for detail in _parsed(details):
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            violations = _violations(detail)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry_delay = _retry_delay(detail)
    return _errors.HivememError.class_for(info.reason, status)(
        text or status,
        reason=info.reason or status,
        metadata=info.metadata,
        violations=violations,
        retry_delay=retry_delay,
    )


def failure_error(failure: types_pb2.Failure) -> _errors.HivememError:
    """The exception for an append that was refused in-band, by the same reasons."""
    reason = _reason(failure.reason)
    return _errors.HivememError.class_for(reason, "")(
        failure.message or reason,
        reason=reason,
        metadata=failure.metadata,
        violations=[
            _errors.FieldViolation(field=violation.field, description=violation.description)
            for violation in failure.violations
        ],
        retry_delay=duration(failure.retry_delay).total_seconds() if failure.HasField("retry_delay") else None,
    )


def _reason(number: error_reason_pb2.ErrorReason.ValueType) -> str:
    try:
        return error_reason_pb2.ErrorReason.Name(number).removeprefix("ERROR_REASON_")
    except ValueError:  # one that only a newer server knows
        return "UNKNOWN"


def _parsed(details: bytes | None) -> list[Any_]:
    try:
        return list(status_pb2.Status.FromString(details or b"").details)
    except DecodeError:  # some proxy's own idea of details
        return []


def _violations(detail: Any_) -> list[_errors.FieldViolation]:
    bad_request = error_details_pb2.BadRequest()
    detail.Unpack(bad_request)
    return [
        _errors.FieldViolation(field=violation.field, description=violation.description)
        for violation in bad_request.field_violations
    ]


def _retry_delay(detail: Any_) -> float:
    retry_info = error_details_pb2.RetryInfo()
    detail.Unpack(retry_info)
    return duration(retry_info.retry_delay).total_seconds()
