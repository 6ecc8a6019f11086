"""An append as it is asked for, and as it is handed to the log."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from hivemem.redaction import Redactor

from hivemem_server.domain.filters import Filter
from hivemem_server.domain.values import AttributeValue, Expectation, Namespace, NewEpisode, ThreadReference

_VERSION = b"\x01"
_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Fails an append if anything that matches was appended after the position."""

    wanted: Filter
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """One append: all its episodes or none, to one stream.

    `size` is its bytes as it came; `digests` are of the episodes as they were received.
    """

    session_id: str
    agent_id: str
    episodes: tuple[NewEpisode, ...]
    expectation: Expectation = field(default_factory=Expectation)
    conditions: tuple[Condition, ...] = ()
    size: int = 0
    digests: tuple[bytes, ...] = ()


def prepared(append: Append, namespace: Namespace, redactor: Redactor) -> Append:
    """The append as it may be stored: digests of what was received, then secrets taken out.

    In this order, so that a resend is known whatever the rules of redaction have become meanwhile.
    """
    stream = (append.session_id, append.agent_id)
    return replace(
        append,
        digests=tuple(episode_digest(namespace.digest_key, *stream, episode) for episode in append.episodes),
        episodes=tuple(redacted(episode, redactor) for episode in append.episodes),
    )


def episode_digest(key: bytes, session_id: str, agent_id: str, episode: NewEpisode) -> bytes:
    """33 bytes: a version, then a keyed hash of everything that the client sent.

    Keyed, so that a stolen digest does not confirm a guess of what was redacted or erased. What is hashed never changes
    under one version: digests of this version are in the logs of the world.
    """
    content = (
        session_id, agent_id, str(episode.episode_id), episode.summary, episode.kind, episode.turn, episode.tags,
        episode.attributes, episode.event_time and str(episode.event_time),
        [(decision.decision_id, decision.text, decision.supersedes) for decision in episode.decisions],
        [(opened.thread_id, opened.text, opened.priority, opened.tags, opened.plan_id, opened.step)
         for opened in episode.open_threads],
        _references(episode.resolves), _references(episode.drops), _references(episode.supersedes_threads),
        episode.to_agents,
    )  # fmt: skip
    text = _encoded(content)
    return _VERSION + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32, key=key).digest()


def _references(given: Iterable[ThreadReference]) -> list[tuple[str, int]]:
    return [(reference.thread_id, reference.fence) for reference in given]


def redacted(episode: NewEpisode, redactor: Redactor) -> NewEpisode:
    """The episode without the secrets in its texts, tags and attributes; ids are not looked at.

    The same object if there are none, as in nearly every episode.
    """
    clean = redactor.redact

    def value(given: AttributeValue) -> AttributeValue:
        return clean(given) if isinstance(given, str) else given

    if all(clean(text) is text for text in _texts(episode)):
        return episode
    values = episode.attributes.values()
    return replace(
        episode,
        summary=clean(episode.summary),
        tags=tuple(map(clean, episode.tags)),
        attributes=dict(zip(_apart(map(clean, episode.attributes)), map(value, values), strict=True)),
        decisions=tuple(replace(decision, text=clean(decision.text)) for decision in episode.decisions),
        open_threads=tuple(
            replace(thread, text=clean(thread.text), tags=tuple(map(clean, thread.tags)))
            for thread in episode.open_threads
        ),
    )


def _apart(keys: Iterable[str]) -> Iterator[str]:
    """Keys told apart: two secrets have the same mark, and no value may be lost for it."""
    seen: Counter[str] = Counter()
    for key in keys:
        seen[key] += 1
        yield key if seen[key] == 1 else f"{key}#{seen[key]}"


def _texts(episode: NewEpisode) -> Iterator[str]:
    """All that `redacted` looks at."""
    yield episode.summary
    yield from episode.tags
    for key, given in episode.attributes.items():
        yield key
        if isinstance(given, str):
            yield given
    for decision in episode.decisions:
        yield decision.text
    for thread in episode.open_threads:
        yield thread.text
        yield from thread.tags
