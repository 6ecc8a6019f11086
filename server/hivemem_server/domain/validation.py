"""Rules for what callers send. All violations of a call are collected, so that one answer names them all."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from hivemem_server.domain import limits
from hivemem_server.domain.appends import Append, Condition
from hivemem_server.domain.errors import InvalidField, TooLarge, Violation
from hivemem_server.domain.filters import AttributePredicate, Filter, Operator, SessionFilter, ThreadFilter, TimeRange
from hivemem_server.domain.values import Attributes, NewEpisode, OpenThread, ThreadReference

_ID = re.compile(rf"[A-Za-z0-9\-_.:@/]{{1,{limits.ID_CHARACTERS}}}")
_ID_RULE = f"must be 1 to {limits.ID_CHARACTERS} characters of A-Za-z0-9-_.:@/"


class Violations:
    """Collects violations; `done` raises them together."""

    def __init__(self) -> None:
        self._found: list[Violation] = []

    def add(self, field: str, description: str) -> None:
        """Notes one violation."""
        self._found.append(Violation(field, description))

    def done(self) -> None:
        """Raises InvalidField with everything noted, if anything was."""
        if self._found:
            raise InvalidField(self._found)

    def identifier(self, field: str, value: str, *, required: bool = True) -> None:
        """An id chosen by a user."""
        if value:
            if not _ID.fullmatch(value):
                self.add(field, _ID_RULE)
        elif required:
            self.add(field, "is required")

    def text(self, field: str, value: str, most: int, *, required: bool = False) -> None:
        """Text that PostgreSQL can store, of at most `most` bytes."""
        if not value:
            if required:
                self.add(field, "must not be empty")
            return
        if "\0" in value:
            self.add(field, "must not contain NUL characters, which cannot be stored")
        if len(value) * 4 > most and (size := len(value.encode("utf-8", "surrogatepass"))) > most:
            self.add(field, f"has {size} bytes, the limit is {most}")
        if required and not value.strip():
            self.add(field, "must not be blank")

    def count(self, field: str, values: Sequence[object] | Mapping[str, object], most: int) -> None:
        """A list or map of at most `most` entries."""
        if len(values) > most:
            self.add(field, f"has {len(values)} entries, the limit is {most}")

    def at_least(self, field: str, value: int, least: int = 0) -> None:
        """A number that is not below `least`."""
        if value < least:
            self.add(field, f"is {value}, must be at least {least}")

    def between(self, field: str, value: float, least: float, most: float) -> None:
        """A number between two bounds, both included; NaN is none."""
        if not least <= value <= most:
            self.add(field, f"is {value:g}, must be {least:g} to {most:g}")

    def unique(self, field: str, values: Sequence[str]) -> None:
        """No value twice."""
        if len(set(values)) != len(values):
            twice = next(value for index, value in enumerate(values) if value in values[:index])
            self.add(field, f"names {twice!r} more than once")


def check_append(found: Violations, append: Append) -> None:
    """Raises for an append that must not be stored, with what was found before.

    That there are not too many episodes and conditions is for the caller to check before it reads them.
    """
    if append.size > limits.APPEND_BYTES:
        raise TooLarge(
            f"the append has {append.size} bytes, the limit is {limits.APPEND_BYTES}: send fewer episodes in one call",
            size=append.size,
            limit=limits.APPEND_BYTES,
        )
    found.identifier("session_id", append.session_id)
    found.identifier("agent_id", append.agent_id)
    if not append.episodes:
        found.add("episodes", "must not be empty")
    for index, condition in enumerate(append.conditions):
        _check_condition(found, f"conditions[{index}]", condition)
    for index, episode in enumerate(append.episodes):
        _check_episode(found, f"episodes[{index}]", episode)
    _check_unique_ids(found, append.episodes)
    found.done()


def _check_condition(found: Violations, path: str, condition: Condition) -> None:
    check_filter(found, condition.wanted, f"{path}.filter")
    found.at_least(f"{path}.after_position", condition.after)
    if condition.wanted == Filter():
        found.add(f"{path}.filter", "must set at least one field")


def _check_unique_ids(found: Violations, episodes: Sequence[NewEpisode]) -> None:
    if len(episodes) > 1:
        found.unique("episodes.episode_id", [str(episode.episode_id) for episode in episodes])
    found.unique("episodes.decisions.decision_id", [d.decision_id for e in episodes for d in e.decisions])
    found.unique("episodes.open_threads.thread_id", [t.thread_id for e in episodes for t in e.open_threads])
    ended = [ref.thread_id for e in episodes for ref in (*e.resolves, *e.drops, *e.supersedes_threads)]
    found.unique("episodes.resolves, drops and supersedes_threads", ended)


def _check_episode(found: Violations, path: str, episode: NewEpisode) -> None:
    found.text(f"{path}.summary", episode.summary, limits.SUMMARY_BYTES, required=True)
    found.identifier(f"{path}.kind", episode.kind)
    found.at_least(f"{path}.turn", episode.turn)
    if episode.tags:
        _check_tags(found, f"{path}.tags", episode.tags)
    if episode.attributes:
        _check_attributes(found, f"{path}.attributes", episode.attributes)
    if episode.decisions:
        _check_decisions(found, path, episode)
    if episode.open_threads:
        _check_open_threads(found, f"{path}.open_threads", episode.open_threads)
    _check_ended(found, path, episode)
    if episode.to_agents:
        found.count(f"{path}.to_agents", episode.to_agents, limits.TO_AGENTS)
        _check_ids(found, f"{path}.to_agents", episode.to_agents)


def _check_tags(found: Violations, path: str, tags: Sequence[str]) -> None:
    found.count(path, tags, limits.TAGS)
    for index, tag in enumerate(tags):
        found.text(f"{path}[{index}]", tag, limits.TAG_BYTES, required=True)


def _check_ids(found: Violations, path: str, ids: Iterable[str]) -> None:
    for index, value in enumerate(ids):
        found.identifier(f"{path}[{index}]", value)


def _check_attributes(found: Violations, path: str, attributes: Attributes) -> None:
    found.count(path, attributes, limits.ATTRIBUTES)
    size = 0
    for key, value in attributes.items():
        found.text(f"{path}.key", key, limits.TAG_BYTES, required=True)
        size += len(key) + (len(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else 8)
        if isinstance(value, str):
            found.text(f"{path}[{key!r}]", value, limits.ATTRIBUTES_BYTES)
        elif isinstance(value, float) and not math.isfinite(value):
            found.add(f"{path}[{key!r}]", "must be a finite number")
    if size > limits.ATTRIBUTES_BYTES:
        found.add(path, f"have {size} bytes, the limit is {limits.ATTRIBUTES_BYTES}")


def _check_decisions(found: Violations, path: str, episode: NewEpisode) -> None:
    found.count(f"{path}.decisions", episode.decisions, limits.DECISIONS)
    for index, decision in enumerate(episode.decisions):
        where = f"{path}.decisions[{index}]"
        found.identifier(f"{where}.decision_id", decision.decision_id)
        found.text(f"{where}.text", decision.text, limits.TEXT_BYTES, required=True)
        found.count(f"{where}.supersedes", decision.supersedes, limits.SUPERSEDED_DECISIONS)
        _check_ids(found, f"{where}.supersedes", decision.supersedes)


def _check_open_threads(found: Violations, path: str, threads: Sequence[OpenThread]) -> None:
    found.count(path, threads, limits.OPEN_THREADS)
    for index, thread in enumerate(threads):
        where = f"{path}[{index}]"
        found.identifier(f"{where}.thread_id", thread.thread_id)
        found.text(f"{where}.text", thread.text, limits.TEXT_BYTES, required=True)
        found.between(f"{where}.priority", thread.priority, -limits.PRIORITY, limits.PRIORITY)
        _check_tags(found, f"{where}.tags", thread.tags)
        found.identifier(f"{where}.plan_id", thread.plan_id, required=False)
        found.at_least(f"{where}.step", thread.step)
        if thread.step and not thread.plan_id:
            found.add(f"{where}.step", "needs a plan_id")


def _check_ended(found: Violations, path: str, episode: NewEpisode) -> None:
    for name in ("resolves", "drops", "supersedes_threads"):
        references: tuple[ThreadReference, ...] = getattr(episode, name)
        found.count(f"{path}.{name}", references, limits.ENDED_THREADS)
        for index, reference in enumerate(references):
            found.identifier(f"{path}.{name}[{index}].thread_id", reference.thread_id)
            found.at_least(f"{path}.{name}[{index}].fence", reference.fence)


def check_session(session_id: str, user_id: str, goal: str, labels: Mapping[str, str], continues: str) -> None:
    """Raises for a session that must not be made."""
    found = Violations()
    found.identifier("session_id", session_id)
    found.identifier("user_id", user_id, required=False)
    found.identifier("continues_session_id", continues, required=False)
    found.text("goal", goal, limits.TEXT_BYTES)
    check_labels(found, "labels", labels)
    found.done()


def check_labels(found: Violations, path: str, labels: Mapping[str, str]) -> None:
    """Notes what is wrong with labels."""
    found.count(path, labels, limits.LABELS)
    for key, value in labels.items():
        found.text(f"{path}.key", key, limits.TAG_BYTES, required=True)
        found.text(f"{path}[{key!r}]", value, limits.TAG_BYTES)


def check_filter(found: Violations, wanted: Filter, path: str = "filter") -> None:
    """Notes what is wrong with a filter."""
    for name in ("session_ids", "agent_ids", "exclude_agent_ids", "user_ids", "kinds", "to_agents"):
        _check_filter_ids(found, f"{path}.{name}", getattr(wanted, name))
    for name in ("any_tags", "all_tags"):
        tags: tuple[str, ...] = getattr(wanted, name)
        found.count(f"{path}.{name}", tags, limits.FILTER_VALUES)
        for index, tag in enumerate(tags):
            found.text(f"{path}.{name}[{index}]", tag, limits.TAG_BYTES, required=True)
    found.count(f"{path}.attributes", wanted.attributes, limits.FILTER_PREDICATES)
    for index, predicate in enumerate(wanted.attributes):
        _check_predicate(found, f"{path}.attributes[{index}]", predicate)
    for name in ("commit_time", "event_time"):
        span: TimeRange = getattr(wanted, name)
        if span.start and span.end and span.start >= span.end:
            found.add(f"{path}.{name}", "ends before it starts")
    found.at_least(f"{path}.positions.after", wanted.after)
    found.at_least(f"{path}.positions.through", wanted.through)


def _check_filter_ids(found: Violations, path: str, values: Sequence[str]) -> None:
    found.count(path, values, limits.FILTER_VALUES)
    _check_ids(found, path, values)


def _check_predicate(found: Violations, path: str, predicate: AttributePredicate) -> None:
    found.text(f"{path}.key", predicate.key, limits.TAG_BYTES, required=True)
    for index, value in enumerate(predicate.values):
        if isinstance(value, str):
            found.text(f"{path}.values[{index}]", value, limits.ATTRIBUTES_BYTES)
        elif isinstance(value, float) and not math.isfinite(value):
            found.add(f"{path}.values[{index}]", "must be a finite number")
    least, most = _value_counts(predicate.operator)
    if not least <= len(predicate.values) <= most:
        expected = str(least) if least == most else f"{least} to {most}"
        found.add(f"{path}.values", f"has {len(predicate.values)} values, {predicate.operator.name} takes {expected}")


def _value_counts(operator: Operator) -> tuple[int, int]:
    if operator in (Operator.EXISTS, Operator.MISSING):
        return 0, 0
    return (1, limits.FILTER_VALUES) if operator is Operator.IN else (1, 1)


def check_thread_filter(found: Violations, wanted: ThreadFilter, path: str = "filter") -> None:
    """Notes what is wrong with a filter of threads."""
    for name in ("session_ids", "user_ids", "agent_ids", "claimed_by_agent_ids", "plan_ids"):
        _check_filter_ids(found, f"{path}.{name}", getattr(wanted, name))
    found.count(f"{path}.any_tags", wanted.any_tags, limits.FILTER_VALUES)
    for index, tag in enumerate(wanted.any_tags):
        found.text(f"{path}.any_tags[{index}]", tag, limits.TAG_BYTES, required=True)
    for name in ("min_age", "max_age"):
        age: dt.timedelta | None = getattr(wanted, name)
        if age is not None and age < dt.timedelta(0):
            found.add(f"{path}.{name}", "must not be negative")


def check_session_filter(found: Violations, wanted: SessionFilter) -> None:
    """Notes what is wrong with a filter of sessions."""
    _check_filter_ids(found, "user_ids", wanted.user_ids)
    check_labels(found, "labels", dict(wanted.labels))


def page_size(requested: int) -> int:
    """The page size to use; raises for a negative one."""
    found = Violations()
    found.at_least("page_size", requested)
    found.done()
    return min(requested or limits.DEFAULT_PAGE_SIZE, limits.PAGE_SIZE)
