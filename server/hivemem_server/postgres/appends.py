"""Appends on their way to the append function, and what it answers on its way back."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, LiteralString

from sqlalchemy import literal_column, select

from hivemem_server.domain import errors
from hivemem_server.domain.appends import Append, Condition
from hivemem_server.domain.errors import EpisodeErased, HivememError
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.passages import searchable_text
from hivemem_server.domain.values import (
    AppendOutcome,
    Namespace,
    NewEpisode,
    OpenThread,
    Stored,
    StreamState,
    ThreadState,
)
from hivemem_server.postgres import rows
from hivemem_server.postgres.database import Query, Row, compiled
from hivemem_server.postgres.filters import as_json, reading_json, record_conditions, record_params, shape
from hivemem_server.postgres.tables import log

# One autocommit statement: the namespace's lock is never held across a round trip.
APPEND: LiteralString = """
SELECT append, outcome, details, r_position, r_revision, r_time FROM append_v2(
    %s, %s::text[], %s::text[], %s::smallint[], %s::bigint[], %s::boolean[], %s::int[], %s::text[], %s::jsonb[],
    %s::int[], %s::uuid[], %s::bytea[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::jsonb[],
    %s::timestamptz[], %s::jsonb[], %s::jsonb[], %s::jsonb[], %s::text[], %s::int[], %s::smallint[], %s::text[],
    %s::int[], %s::smallint[], %s::text[], %s::int[], %s::text[], %s::text[], %s::int[])
"""


APPEND_COLUMNS, CONDITION_COLUMNS, EPISODE_COLUMNS, DECISION_COLUMNS, THREAD_COLUMNS = 5, 3, 14, 3, 7


def arguments(namespace: Namespace, appends: Sequence[Append]) -> list[object]:
    """The arguments of APPEND: the namespace's key, then one array a column as PostgreSQL writes it.

    The driver's own arrays cost eight times as much.
    """
    episodes = [
        (index, append.agent_id, new, digest)
        for index, append in enumerate(appends, 1)
        for new, digest in zip(append.episodes, append.digests, strict=True)
    ]
    decisions = [
        (number, ordinal, decision.decision_id)
        for number, (_, _, new, _) in enumerate(episodes, 1)
        for ordinal, decision in enumerate(new.decisions, 1)
    ]
    threads = [
        _thread_row(number, ordinal, thread)
        for number, (_, _, new, _) in enumerate(episodes, 1)
        for ordinal, thread in enumerate(new.open_threads, 1)
    ]
    twice = _coming_twice(appends)
    return [
        namespace.key,
        *_arrays([_append_row(append, twice) for append in appends], APPEND_COLUMNS),
        *_arrays(_condition_rows(namespace, appends), CONDITION_COLUMNS),
        *_arrays([_episode_row(*episode) for episode in episodes], EPISODE_COLUMNS),
        *_arrays(decisions, DECISION_COLUMNS),
        *_arrays(threads, THREAD_COLUMNS),
    ]


def _arrays(of_rows: Sequence[tuple[object, ...]], columns: int) -> list[str]:
    return list(map(rows.array_literal, zip(*of_rows, strict=True))) if of_rows else ["{}"] * columns


def _append_row(append: Append, twice: set[tuple[str, object]]) -> tuple[object, ...]:
    expected = append.expectation
    plain = _asks_nothing(append) and twice.isdisjoint(_ids(append))
    return append.session_id, append.agent_id, int(expected.state), expected.revision, plain


def _asks_nothing(append: Append) -> bool:
    """Whether it does not matter to the append what the log holds already."""
    if append.conditions or append.expectation.state is not StreamState.ANY:
        return False
    return not any(
        new.resolves or new.drops or new.supersedes_threads or any(decision.supersedes for decision in new.decisions)
        for new in append.episodes
    )


def _coming_twice(appends: Sequence[Append]) -> set[tuple[str, object]]:
    ids = [name for append in appends for name in _ids(append)]
    unique = set(ids)
    return {name for name, times in Counter(ids).items() if times > 1} if len(unique) < len(ids) else set()


def _ids(append: Append) -> Iterator[tuple[str, object]]:
    """What an append brings, each under the name of its kind."""
    for new in append.episodes:
        yield "episode", new.episode_id
        for decision in new.decisions:
            yield "decision", decision.decision_id
        for thread in new.open_threads:
            yield "thread", thread.thread_id


def _condition_rows(namespace: Namespace, appends: Sequence[Append]) -> list[tuple[object, ...]]:
    return [
        (index, *_condition_query(namespace, condition))
        for index, append in enumerate(appends, 1)
        for condition in append.conditions
    ]


def _condition_query(namespace: Namespace, condition: Condition) -> tuple[str, str]:
    """The query for the position of the first record that breaks the condition, and its parameters."""
    query = _breaking(shape(condition.wanted))
    later = replace(condition.wanted, after=max(condition.after, condition.wanted.after))
    return reading_json(query), as_json(query, record_params(namespace.key, later))


@functools.lru_cache(maxsize=1_000)
def _breaking(shaped: Filter) -> Query:
    conditions = record_conditions(replace(shaped, after=1))
    return compiled(select(log.c.position).where(*conditions).order_by(log.c.position).limit(literal_column("1")))


def _episode_row(index: int, agent_id: str, new: NewEpisode, digest: bytes) -> tuple[object, ...]:
    return (
        index,
        str(new.episode_id),
        rf"\x{digest.hex()}",
        new.turn,
        new.kind,
        new.summary,
        searchable_text(agent_id, new),
        rows.array_literal(new.tags) if new.tags else None,
        rows.dumped_attributes(new.attributes) if new.attributes else None,
        new.event_time and new.event_time.isoformat(),
        rows.dumped_decisions(new) if new.decisions else None,
        rows.dumped_threads(new) if new.open_threads else None,
        rows.dumped_ended(new),
        rows.array_literal(new.to_agents) if new.to_agents else None,
    )


def _thread_row(episode: int, ordinal: int, thread: OpenThread) -> tuple[object, ...]:
    return (
        episode,
        ordinal,
        thread.thread_id,
        thread.priority,
        rows.array_literal(thread.tags) if thread.tags else None,
        thread.plan_id or None,
        thread.step or None,
    )


def outcomes(appends: Sequence[Append], found: Sequence[Row]) -> list[AppendOutcome | HivememError]:
    """What became of each append, from the rows of APPEND."""
    grouped: list[list[Row]] = [[] for _ in appends]
    for row in found:
        grouped[row[0] - 1].append(row)
    return list(map(_outcome, appends, grouped))


def _outcome(append: Append, found: Sequence[Row]) -> AppendOutcome | HivememError:
    _, reason, details, *_ = found[0]
    if reason not in ("OK", "DUPLICATE"):
        return _refusal(append, reason, details or {})
    stored = [Stored(position=row[3], revision=row[4], commit_time=row[5]) for row in found]
    if reason == "OK":
        stored.sort(key=lambda one: one.position)
    return AppendOutcome(stored=tuple(stored), deduplicated=reason == "DUPLICATE")


def _refusal(append: Append, outcome: str, details: dict[str, Any]) -> HivememError:
    """The error of an append that the database refused, from its reason and numbers."""
    session = append.session_id
    match outcome:
        case "NAMESPACE_NOT_FOUND":
            return errors.NamespaceNotFound("the namespace does not exist any more")
        case "SESSION_NOT_FOUND":
            message = f"session {session!r} does not exist: create it first"
            return errors.SessionNotFound(message, session_id=session)
        case "SESSION_CLOSED":
            message = f"session {session!r} is closed: continue it in a new one with continues_session_id"
            return errors.SessionClosed(message, session_id=session)
        case "EPISODE_ID_REUSED":
            message = f"episode id {details['episode_id']} is known with other content: make a new id for new content"
            return errors.EpisodeIdReused(message, **details)
        case "EPISODE_ERASED":
            return EpisodeErased(f"episode {details['episode_id']} was erased; a resend stores nothing", **details)
        case "PARTIAL_DUPLICATE":
            message = f"{details['known']} of {details['sent']} episodes are stored already: send the others alone"
            return errors.PartialDuplicate(message, **details)
        case "REVISION_CONFLICT":
            return _revision_conflict(append, details["actual"], details.get("conditions", {}))
        case "CONDITION_FAILED":
            message = "news that the conditions did not expect: read on and decide again"
            return errors.ConditionFailed(message, **_failed_conditions(details["conditions"]))
    return _thread_refusal(outcome, details)


def _revision_conflict(append: Append, actual: int, failed: dict[str, int]) -> HivememError:
    wanted = {
        StreamState.NO_STREAM: "no episode yet",
        StreamState.EXISTS: "an episode",
        StreamState.REVISION: f"revision {append.expectation.revision}",
    }[append.expectation.state]
    expected = {StreamState.NO_STREAM: 0, StreamState.EXISTS: "exists"}.get(
        append.expectation.state, append.expectation.revision
    )
    return errors.RevisionConflict(
        f"the stream of {append.agent_id!r} in session {append.session_id!r} is at revision {actual},"
        f" expected was {wanted}: read it and decide again",
        expected=expected,
        actual=actual,
        **_failed_conditions(failed),
    )


def _failed_conditions(failed: dict[str, int]) -> dict[str, int]:
    """Metadata that names each condition that does not hold, and the position that breaks it."""
    return {f"conditions[{index}]": position for index, position in failed.items()}


def _thread_refusal(outcome: str, details: dict[str, Any]) -> HivememError:
    thread = details.get("thread_id")
    match outcome:
        case "THREAD_NOT_FOUND":
            return errors.ThreadNotFound(f"thread {thread!r} does not exist in this namespace", thread_id=thread)
        case "THREAD_STATE":
            state = ThreadState(details["state"]).name
            cure = "choose another id, or none" if details.get("opening") else "it cannot be ended again"
            return errors.ThreadStateConflict(
                f"thread {thread!r} is there and {state.lower()}: {cure}", thread_id=thread, state=state
            )
        case "FENCE_STALE":
            message = f"the claim on thread {thread!r} with fence {details['fence']} is over: stop work on it"
            return errors.FenceStale(message, **details)
        case "CLAIM_HELD":
            message = f"thread {thread!r} is claimed by {details['agent_id']!r} until {details['expire_time']}"
            return errors.ClaimHeld(message, **details)
    path = f"episodes[{details['episode']}].decisions[{details['item']}]"
    if outcome == "DECISION_KNOWN":
        rule = f"{details['decision_id']!r} is known already: choose another id, or none"
        return errors.InvalidField.at(f"{path}.decision_id", rule)
    if outcome == "DECISION_UNKNOWN":
        return errors.InvalidField.at(f"{path}.supersedes", f"there is no decision {details['decision_id']!r}")
    raise AssertionError(f"the append function returned an outcome that this server does not know: {outcome}")
