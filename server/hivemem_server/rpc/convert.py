"""Between the contract's messages and the domain's values: times, attributes, episodes, records, filters."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from uuid import UUID

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hivemem.v1 import types_pb2 as pb

from hivemem_server.domain.filters import AttributePredicate, Filter, Operator, TimeRange
from hivemem_server.domain.validation import Violations
from hivemem_server.domain.values import (
    Attributes,
    AttributeValue,
    Decision,
    Episode,
    LogRecord,
    NewEpisode,
    OpenThread,
    RecordKind,
    ThreadEvent,
    ThreadReference,
)

NIL = UUID(int=0)
DEFAULT_KIND = "note"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # years 1 to 9999
_MICROSECOND = dt.timedelta(microseconds=1)


def time_from(found: Violations, path: str, stamp: Timestamp) -> dt.datetime:
    """The time, or a violation and the epoch."""
    if not _FIRST_SECOND <= stamp.seconds <= _LAST_SECOND or not 0 <= stamp.nanos < 1_000_000_000:
        found.add(path, "must be a valid time in the years 1 to 9999")
        return _EPOCH
    return _EPOCH + dt.timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1_000)


def stamp(time: dt.datetime) -> Timestamp:
    """The time as a message."""
    seconds, micros = divmod((time - _EPOCH) // _MICROSECOND, 1_000_000)
    return Timestamp(seconds=seconds, nanos=micros * 1_000)


def duration(seconds: float) -> Duration:
    """Seconds as a message."""
    whole = Duration()
    whole.FromMicroseconds(round(seconds * 1_000_000))
    return whole


def seconds(given: Duration) -> float:
    """A message as seconds."""
    return given.seconds + given.nanos / 1e9


def attributes_from(found: Violations, path: str, given: Mapping[str, pb.AttributeValue]) -> Attributes:
    """Typed values, with a violation for each that is not set."""
    values: dict[str, AttributeValue] = {}
    for key, message in given.items():
        value = attribute_from(message)
        if value is None:
            found.add(f"{path}[{key!r}]", "needs a value of one type")
        else:
            values[key] = value
    return values


def attribute_from(given: pb.AttributeValue) -> AttributeValue | None:
    """One typed value; None if none is set."""
    name = given.WhichOneof("kind")
    if name is None:
        return None
    value: AttributeValue = getattr(given, name)
    return value


def attribute(value: AttributeValue) -> pb.AttributeValue:
    """One typed value as a message."""
    match value:
        case bool():
            return pb.AttributeValue(bool_value=value)
        case int():
            return pb.AttributeValue(int_value=value)
        case float():
            return pb.AttributeValue(double_value=value)
    return pb.AttributeValue(string_value=value)


def new_episode_from(found: Violations, path: str, given: pb.NewEpisode) -> NewEpisode:
    """An episode to be appended, with ids that were left out derived from its own."""
    episode_id = uuid_from(found, f"{path}.episode_id", given.episode_id)
    prefix = str(episode_id)
    event_time = None
    if given.HasField("event_time"):
        event_time = time_from(found, f"{path}.event_time", given.event_time)
    return NewEpisode(
        episode_id=episode_id,
        turn=given.turn,
        summary=given.summary,
        kind=given.kind or DEFAULT_KIND,
        tags=tuple(dict.fromkeys(given.tags)),
        attributes=attributes_from(found, f"{path}.attributes", given.attributes) if given.attributes else {},
        event_time=event_time,
        decisions=tuple(_decision_from(prefix, index, item) for index, item in enumerate(given.decisions, 1)),
        open_threads=tuple(_thread_from(prefix, index, item) for index, item in enumerate(given.open_threads, 1)),
        resolves=_references_from(given.resolves),
        drops=_references_from(given.drops),
        supersedes_threads=_references_from(given.supersedes_threads),
        to_agents=tuple(dict.fromkeys(given.to_agents)),
    )


def uuid_from(found: Violations, path: str, text: str) -> UUID:
    """The UUID, or a violation and the nil one."""
    try:
        value = UUID(text)
    except ValueError:
        value = NIL
    if str(value) != text.lower() or value == NIL:
        found.add(path, "must be a UUID like 018f3c2e-5b7a-7c31-9d4e-8a1b2c3d4e5f")
        return NIL
    return value


def _decision_from(prefix: str, index: int, given: pb.NewDecision) -> Decision:
    return Decision(
        decision_id=given.decision_id or f"{prefix}/d{index}",
        text=given.text,
        supersedes=tuple(dict.fromkeys(given.supersedes)),
    )


def _thread_from(prefix: str, index: int, given: pb.NewThread) -> OpenThread:
    return OpenThread(
        thread_id=given.thread_id or f"{prefix}/t{index}",
        text=given.text,
        priority=given.priority,
        tags=tuple(dict.fromkeys(given.tags)),
        plan_id=given.plan_id,
        step=given.step,
    )


def _references_from(given: Iterable[pb.ThreadReference]) -> tuple[ThreadReference, ...]:
    return tuple(ThreadReference(thread_id=item.thread_id, fence=item.fence) for item in given)


def episode(value: Episode) -> pb.Episode:
    """An episode as a message."""
    message = pb.Episode(
        episode_id=str(value.episode_id),
        position=value.position,
        session_id=value.session_id,
        agent_id=value.agent_id,
        revision=value.revision,
        turn=value.turn,
        summary=value.summary,
        kind=value.kind,
        commit_time=stamp(value.commit_time),
    )
    if value.event_time:
        message.event_time.CopyFrom(stamp(value.event_time))
    if value.tags:
        message.tags.extend(value.tags)
    for key, item in value.attributes.items():
        message.attributes[key].CopyFrom(attribute(item))
    if value.decisions:
        message.decisions.extend(map(decision, value.decisions))
    if value.open_threads:
        message.open_threads.extend(map(_open_thread, value.open_threads))
    if value.to_agents:
        message.to_agents.extend(value.to_agents)
    if value.resolves or value.drops or value.supersedes_threads:
        message.resolves.extend(map(_reference, value.resolves))
        message.drops.extend(map(_reference, value.drops))
        message.supersedes_threads.extend(map(_reference, value.supersedes_threads))
    return message


def decision(value: Decision) -> pb.Decision:
    """A decision as a message."""
    return pb.Decision(decision_id=value.decision_id, text=value.text, supersedes=value.supersedes)


def _open_thread(value: OpenThread) -> pb.OpenThread:
    return pb.OpenThread(
        thread_id=value.thread_id,
        text=value.text,
        priority=value.priority,
        tags=value.tags,
        plan_id=value.plan_id,
        step=value.step,
    )


def _reference(value: ThreadReference) -> pb.ThreadReference:
    return pb.ThreadReference(thread_id=value.thread_id, fence=value.fence)


def record(value: LogRecord) -> pb.LogRecord:
    """A log record as a message."""
    message = pb.LogRecord(position=value.position, time=stamp(value.time), score=value.score)
    if isinstance(value.content, Episode):
        message.episode.CopyFrom(episode(value.content))
    else:
        message.thread_event.CopyFrom(_thread_event(value.content))
    return message


def _thread_event(value: ThreadEvent) -> pb.ThreadEvent:
    message = pb.ThreadEvent(
        thread_id=value.thread_id,
        type=pb.ThreadEventType.ValueType(int(value.type)),
        session_id=value.session_id,
        agent_id=value.agent_id,
        episode_id=str(value.episode_id) if value.episode_id else "",
        fence=value.fence,
        note=value.note,
    )
    if value.expire_time:
        message.expire_time.CopyFrom(stamp(value.expire_time))
    return message


def filter_from(
    found: Violations, given: pb.Filter, *, record_kinds: tuple[RecordKind, ...] = (RecordKind.EPISODE,)
) -> Filter:
    """A filter, with violations noted for what cannot be one."""
    return Filter(
        session_ids=_unique(given.session_ids),
        agent_ids=_unique(given.agent_ids),
        exclude_agent_ids=_unique(given.exclude_agent_ids),
        user_ids=_unique(given.user_ids),
        kinds=_unique(given.kinds),
        any_tags=_unique(given.any_tags),
        all_tags=_unique(given.all_tags),
        to_agents=_unique(given.to_agents),
        attributes=tuple(
            _predicate_from(found, f"filter.attributes[{index}]", item) for index, item in enumerate(given.attributes)
        ),
        commit_time=_range_from(found, "filter.commit_time", given.commit_time),
        event_time=_range_from(found, "filter.event_time", given.event_time),
        after=given.positions.after,
        through=given.positions.through,
        record_kinds=record_kinds,
    )


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _predicate_from(found: Violations, path: str, given: pb.AttributePredicate) -> AttributePredicate:
    try:
        operator = Operator(given.operator)
    except ValueError:
        found.add(f"{path}.operator", "is required")
        operator = Operator.EXISTS
    values = [attribute_from(value) for value in given.values]
    if None in values:
        found.add(f"{path}.values", "every value needs a type")
    return AttributePredicate(key=given.key, operator=operator, values=tuple(v for v in values if v is not None))


def _range_from(found: Violations, path: str, given: pb.TimeRange) -> TimeRange:
    start = time_from(found, f"{path}.start_time", given.start_time) if given.HasField("start_time") else None
    end = time_from(found, f"{path}.end_time", given.end_time) if given.HasField("end_time") else None
    return TimeRange(start=start, end=end)


def record_kinds_from(found: Violations, given: Iterable[int]) -> tuple[RecordKind, ...]:
    """Kinds of records, episodes if none are given."""
    kinds = []
    for index, number in enumerate(given):
        if number in set(RecordKind):
            kinds.append(RecordKind(number))
        else:
            found.add(f"record_kinds[{index}]", "is not a kind of record that this server knows")
    return tuple(dict.fromkeys(kinds)) or (RecordKind.EPISODE,)


def timedelta_from(found: Violations, path: str, given: Duration) -> dt.timedelta:
    """A duration, or a violation and none at all."""
    if abs(given.seconds) > _LAST_SECOND or abs(given.nanos) >= 1_000_000_000:
        found.add(path, "is out of range")
        return dt.timedelta(0)
    return dt.timedelta(seconds=given.seconds, microseconds=given.nanos // 1_000)
