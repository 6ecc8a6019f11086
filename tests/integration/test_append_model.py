"""The appender against a plain list: whatever is sent, in whatever order and batches, both say the same."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import uuid
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from fix_log import CONNECTIONS, WAIT, open_session
from hivemem_server.domain import errors
from hivemem_server.domain.appends import Append, Condition, prepared
from hivemem_server.domain.errors import HivememError
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.redactors import redactor_of
from hivemem_server.domain.values import (
    AppendOutcome,
    Decision,
    Episode,
    Expectation,
    LogRecord,
    Namespace,
    NamespaceSettings,
    NewEpisode,
    OpenThread,
    RecordKind,
    StreamState,
    ThreadEventType,
    ThreadReference,
    ThreadState,
)
from hivemem_server.log.appender import Appender
from hivemem_server.postgres.database import Database
from hivemem_server.postgres.log import PostgresLog
from hivemem_server.postgres.namespaces import PostgresNamespaces
from hivemem_server.postgres.sessions import PostgresSessions
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

Result = TypeVar("Result")

SESSIONS = ("one", "closing", "late")  # `closing` may be closed, `late` may not be there yet
AGENTS = ("a", "b", "c")
EVENTS = (ThreadEventType.RESOLVED, ThreadEventType.DROPPED, ThreadEventType.SUPERSEDED)


# The model


@dataclass(frozen=True, slots=True)
class Kept:
    """An episode of the list. `sent` is all that makes a resend the same."""

    sent: tuple[str, str, NewEpisode]
    position: int
    revision: int


@dataclass(frozen=True, slots=True)
class Refused:
    """What an append is refused with: one of these errors, and these of its numbers."""

    kinds: tuple[type[HivememError], ...]
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Model:
    """The log as a list: an episode, or the event of a thread as (thread, what happened, episode)."""

    records: list[Kept | tuple[str, ThreadEventType, Kept]] = field(default_factory=list)
    known: dict[uuid.UUID, Kept] = field(default_factory=dict)
    erased: set[uuid.UUID] = field(default_factory=set)
    states: dict[str, bool] = field(default_factory=lambda: {"one": True, "closing": True})
    threads: dict[str, ThreadState] = field(default_factory=dict)
    decisions: dict[str, bool] = field(default_factory=dict)  # whether it still stands

    def append(self, append: Append) -> tuple[bool, list[tuple[int, int]]] | Refused:
        """(deduplicated, positions and revisions), or why not."""
        sent = [(append.session_id, append.agent_id, episode) for episode in append.episodes]
        if any(episode.episode_id in self.known for episode in append.episodes):
            return self._resent(sent)
        if refused := self._session(append) or self._expectations(append) or self._links(append):
            return refused
        return False, [self._store(each) for each in sent]

    def revision(self, session_id: str, agent_id: str) -> int:
        return sum(kept.sent[:2] == (session_id, agent_id) for kept in self.known.values())

    def _resent(self, sent: list[tuple[str, str, NewEpisode]]) -> tuple[bool, list[tuple[int, int]]] | Refused:
        ids = [episode.episode_id for _, _, episode in sent]
        known = [self.known[each] for each in ids if each in self.known]
        for each, kept in ((each, self.known[each[2].episode_id]) for each in sent if each[2].episode_id in self.known):
            if each[2].episode_id not in self.erased and kept.sent != each:
                return Refused((errors.EpisodeIdReused,), {"episode_id": str(each[2].episode_id)})
        for each_id in ids:
            if each_id in self.erased:
                return Refused((errors.EpisodeErased,), {"episode_id": str(each_id)})
        if len(known) < len(sent):
            return Refused((errors.PartialDuplicate,), {"known": str(len(known)), "sent": str(len(sent))})
        return True, [(kept.position, kept.revision) for kept in known]

    def _session(self, append: Append) -> Refused | None:
        if append.session_id not in self.states:
            return Refused((errors.SessionNotFound,))
        return None if self.states[append.session_id] else Refused((errors.SessionClosed,))

    def _expectations(self, append: Append) -> Refused | None:
        actual, expected = self.revision(append.session_id, append.agent_id), append.expectation
        holds = {
            StreamState.ANY: True,
            StreamState.NO_STREAM: actual == 0,
            StreamState.EXISTS: actual > 0,
            StreamState.REVISION: actual == expected.revision,
        }[expected.state]
        failed = {
            f"conditions[{index}]": str(position)
            for index, condition in enumerate(append.conditions)
            if (position := self._breaks(condition))
        }
        if not holds:
            return Refused((errors.RevisionConflict,), {"actual": str(actual)} | failed)
        return Refused((errors.ConditionFailed,), failed) if failed else None

    def _breaks(self, condition: Condition) -> int:
        wanted = condition.wanted
        for record in self.records:
            if isinstance(record, Kept) and record.position > condition.after:
                session_id, agent_id, episode = record.sent
                if (
                    session_id in (wanted.session_ids or (session_id,))
                    and agent_id in (wanted.agent_ids or (agent_id,))
                    and episode.kind in (wanted.kinds or (episode.kind,))
                ):
                    return record.position
        return 0

    def _links(self, append: Append) -> Refused | None:
        """What the first episode with decisions or threads that cannot be is refused with."""
        opened: set[str] = set()
        decided: set[str] = set()
        for episode in append.episodes:
            found: list[type[HivememError]] = []
            for decision in episode.decisions:
                unknown = any(each not in self.decisions.keys() | decided for each in decision.supersedes)
                found += [errors.InvalidField] * (unknown or decision.decision_id in self.decisions)
                decided.add(decision.decision_id)
            found += [errors.ThreadStateConflict for thread in episode.open_threads if thread.thread_id in self.threads]
            for reference, _ in _endings(episode):
                state = self.threads.get(reference.thread_id)
                found += [errors.ThreadNotFound] * (state is None and reference.thread_id not in opened)
                found += [errors.ThreadStateConflict] * (state in (ThreadState.RESOLVED, ThreadState.DROPPED))
            if found:
                return Refused(tuple(found))
            opened |= {thread.thread_id for thread in episode.open_threads}
        return None

    def _store(self, sent: tuple[str, str, NewEpisode]) -> tuple[int, int]:
        session_id, agent_id, episode = sent
        kept = Kept(sent, len(self.records) + 1, self.revision(session_id, agent_id) + 1)
        self.records.append(kept)
        self.known[episode.episode_id] = kept
        for decision in episode.decisions:
            self.decisions[decision.decision_id] = True
            self.decisions.update(dict.fromkeys(decision.supersedes, False))
        self.threads.update((thread.thread_id, ThreadState.OPEN) for thread in episode.open_threads)
        for reference, how in _endings(episode):
            resolved = how is ThreadEventType.RESOLVED
            self.threads[reference.thread_id] = ThreadState.RESOLVED if resolved else ThreadState.DROPPED
            self.records.append((reference.thread_id, how, kept))
        return kept.position, kept.revision


def _endings(episode: NewEpisode) -> Iterator[tuple[ThreadReference, ThreadEventType]]:
    for references, how in zip((episode.resolves, episode.drops, episode.supersedes_threads), EVENTS, strict=True):
        yield from ((reference, how) for reference in references)


# What is sent


@dataclass(frozen=True, slots=True)
class Links:
    """The decisions and threads of an episode; if they are not right, they are taken, not there or ended already."""

    right: bool
    decides: bool
    supersedes: bool
    opens: bool
    ends: bool
    how: int
    pick: int


@dataclass(frozen=True, slots=True)
class Plan:
    """An append that is made when its turn has come, from what was sent until then."""

    what: str
    pick: int
    session_id: str
    agent_id: str
    kinds: list[str]
    links: list[Links]
    expects: StreamState
    off_by: int
    conditions: list[tuple[Filter, int]]


LINKS = st.builds(
    Links,
    right=st.sampled_from([True, True, True, True, False]),
    decides=st.booleans(),
    supersedes=st.booleans(),
    opens=st.booleans(),
    ends=st.booleans(),
    how=st.integers(0, 2),
    pick=st.integers(0, 9),
)
FILTERS = st.builds(
    lambda sessions, agents, kinds: Filter(session_ids=tuple(sessions), agent_ids=tuple(agents), kinds=tuple(kinds)),
    st.lists(st.sampled_from(SESSIONS), max_size=2, unique=True),
    st.lists(st.sampled_from(AGENTS), max_size=2, unique=True),
    st.lists(st.sampled_from(["note", "vote"]), min_size=1, max_size=2, unique=True),
)
PLANS = st.builds(
    Plan,
    what=st.sampled_from(["fresh", "fresh", "fresh", "again", "altered", "partly known"]),
    pick=st.integers(0, 50),
    session_id=st.sampled_from(["one"] * 7 + ["closing", "closing", "late"]),
    agent_id=st.sampled_from(AGENTS),
    kinds=st.lists(st.sampled_from(["note", "vote"]), min_size=1, max_size=3),
    links=st.lists(LINKS, max_size=2),
    expects=st.sampled_from([StreamState.ANY] * 8 + list(StreamState)),
    off_by=st.sampled_from([0, 0, 1, -1]),
    conditions=st.one_of(st.just([]), st.just([]), st.lists(st.tuples(FILTERS, st.integers(0, 9)), max_size=2)),
)


class _Ids:
    """Chooses the decisions and threads of one append. None is named twice: such a call never gets to the log."""

    def __init__(self, model: Model, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._decisions = list(model.decisions)
        self._open = [thread_id for thread_id, state in model.threads.items() if state is ThreadState.OPEN]
        self._ended = [thread_id for thread_id in model.threads if thread_id not in self._open]
        self._taken: set[str] = set()

    def linked(self, episode: NewEpisode, links: Links) -> NewEpisode:
        """The episode with its links."""
        superseded = self._old(self._decisions, links) if links.supersedes else []
        decided = self._new(self._decisions, links) if links.decides else []
        opened = self._new(self._open, links) if links.opens else []
        ended = self._old(self._open if links.right else self._ended, links) if links.ends else []
        endings: dict[str, Any] = {
            ("resolves", "drops", "supersedes_threads")[links.how]: tuple(ThreadReference(thread_id=t) for t in ended)
        }
        return dataclasses.replace(
            episode,
            decisions=tuple(Decision(decision_id=d, text="so be it", supersedes=tuple(superseded)) for d in decided),
            open_threads=tuple(OpenThread(thread_id=each, text="to do") for each in opened),
            **endings,
        )

    def _new(self, there: list[str], links: Links) -> list[str]:
        """An id that is new, or not; what is new may be meant by later episodes of the append."""
        if not links.right and there:
            return self._untaken(there[links.pick % len(there)], "made")
        there.append(f"id-{next(self._numbers)}")
        return self._untaken(there[-1], "made")

    def _old(self, there: list[str], links: Links) -> list[str]:
        """An id that is there, or not."""
        if there:
            return self._untaken(there[links.pick % len(there)], "meant")
        return [] if links.right else self._untaken("unknown", "meant")

    def _untaken(self, name: str, use: str) -> list[str]:
        if f"{use} {name}" in self._taken:
            return []
        self._taken.add(f"{use} {name}")
        return [name]


class _Sender:
    """Makes appends of plans."""

    def __init__(self) -> None:
        self.sent: list[Append] = []
        self._numbers = itertools.count(1)

    def made(self, plan: Plan, model: Model) -> Append:
        """The append that a plan means now."""
        earlier = self.sent[plan.pick % len(self.sent)] if self.sent and plan.what != "fresh" else None
        append = self._varied(plan, earlier) if earlier else self._fresh(plan, model)
        append = self._expecting(plan, append, model)
        self.sent.append(append)
        return append

    def _fresh(self, plan: Plan, model: Model) -> Append:
        ids = _Ids(model, self._numbers)
        links = [*plan.links, *[None] * 3]
        episodes = tuple(self._episode(kind, link, ids) for kind, link in zip(plan.kinds, links, strict=False))
        return Append(session_id=plan.session_id, agent_id=plan.agent_id, episodes=episodes)

    def _varied(self, plan: Plan, earlier: Append) -> Append:
        """An earlier append, or the first of its episodes, as they were, altered, or with a new one."""
        episodes = earlier.episodes[: len(plan.kinds)]
        if plan.what == "altered" and plan.pick % 2:
            return dataclasses.replace(earlier, episodes=episodes, agent_id=plan.agent_id)
        if plan.what == "altered":
            episodes = (*episodes[:-1], dataclasses.replace(episodes[-1], summary="altered"))
        if plan.what == "partly known":
            episodes = (*episodes, self._episode("note"))
        return dataclasses.replace(earlier, episodes=episodes)

    def _episode(self, kind: str, links: Links | None = None, ids: _Ids | None = None) -> NewEpisode:
        summary = f"number {next(self._numbers)}"
        episode = NewEpisode(episode_id=uuid.uuid4(), summary=summary, kind=kind)
        return ids.linked(episode, links) if links and ids else episode

    def _expecting(self, plan: Plan, append: Append, model: Model) -> Append:
        revision = max(0, model.revision(append.session_id, append.agent_id) + plan.off_by)
        if plan.expects is StreamState.REVISION and revision:
            expectation = Expectation(state=StreamState.REVISION, revision=revision)
        else:
            right = StreamState.EXISTS if revision else StreamState.NO_STREAM
            expectation = Expectation(state=right if plan.expects is StreamState.REVISION else plan.expects)
        conditions = tuple(
            Condition(wanted=wanted, after=max(0, len(model.records) - back)) for wanted, back in plan.conditions
        )
        return dataclasses.replace(append, expectation=expectation, conditions=conditions)


# The machine


class World:
    """Two replicas of the appender on one database, to be used from the thread that Hypothesis runs in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, one: Database, two: Database) -> None:
        self._loop = loop
        self.database = one
        self.logs = (PostgresLog(one), PostgresLog(two))
        self.appenders = tuple(Appender(log, lambda *_: None) for log in self.logs)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT)

    async def namespace(self) -> Namespace:
        made, _ = await PostgresNamespaces(self.database).create(f"n-{uuid.uuid4()}", NamespaceSettings())
        for session_id in ("one", "closing"):
            await open_session(self.database, made, session_id)
        return made

    async def send(self, replica: int, straight: bool, namespace: Namespace, appends: list[Append]) -> Sequence[object]:
        """Sends appends at one moment: straight to the store as one batch, or through the appender as two.

        The appender hides faults of a batch, by storing its appends one by one.
        """
        redactor = redactor_of(namespace)
        ready = [prepared(append, namespace, redactor) for append in appends]
        if straight:
            return await self.logs[replica].append(namespace, ready)
        futures = [self.appenders[replica].submit(namespace, append) for append in ready]
        return await asyncio.gather(*futures, return_exceptions=True)

    async def erase(self, namespace: Namespace, position: int) -> None:
        await self.database.fetch(
            "UPDATE log SET digest = NULL WHERE namespace_id = %s AND position = %s", [namespace.key, position]
        )

    async def links(self, namespace: Namespace) -> tuple[dict[str, int], dict[str, bool]]:
        """States of threads, and which decisions stand."""
        threads = await self.database.fetch(
            "SELECT thread_id, state FROM threads WHERE namespace_id = %s", [namespace.key]
        )
        decisions = await self.database.fetch(
            "SELECT decision_id, superseded_by IS NULL FROM decisions WHERE namespace_id = %s", [namespace.key]
        )
        return dict(threads), dict(decisions)


class AppendMachine(RuleBasedStateMachine):
    """Sends to the appender and to the model, and compares."""

    world: World

    @initialize()
    def begin(self) -> None:
        self.model = Model()
        self.sender = _Sender()
        self.namespace = self.world.run(self.world.namespace())
        self.times: dict[uuid.UUID, object] = {}

    @rule(replica=st.integers(0, 1), straight=st.booleans(), plans=st.lists(PLANS, min_size=1, max_size=8))
    def send_many(self, replica: int, straight: bool, plans: list[Plan]) -> None:
        self.send(replica, straight, plans)

    @rule(replica=st.integers(0, 1), straight=st.booleans(), plans=st.lists(PLANS, min_size=2, max_size=4))
    def send(self, replica: int, straight: bool, plans: list[Plan]) -> None:
        appends, expected = [], []
        for plan in plans:
            append = self.sender.made(plan, self.model)
            appends.append(append)
            expected.append(self.model.append(append))
        outcomes = self.world.run(self.world.send(replica, straight, self.namespace, appends))
        for append, wanted, outcome in zip(appends, expected, outcomes, strict=True):
            self._compare(append, wanted, outcome)

    @rule(pick=st.integers(0, 50))
    def erase(self, pick: int) -> None:
        """Erases the episodes of an append, which stay in the list of what may be sent again."""
        for episode in self.sender.sent[pick % len(self.sender.sent)].episodes if self.sender.sent else ():
            if kept := self.model.known.get(episode.episode_id):
                self.model.erased.add(episode.episode_id)
                self.world.run(self.world.erase(self.namespace, kept.position))

    @rule(late=st.booleans())
    def change_sessions(self, late: bool) -> None:
        if late:
            self.model.states["late"] = True
            self.world.run(open_session(self.world.database, self.namespace, "late"))
        else:
            self.model.states["closing"] = False
            self.world.run(PostgresSessions(self.world.database).close(self.namespace, "closing"))

    def _compare(self, append: Append, wanted: tuple[bool, list[tuple[int, int]]] | Refused, outcome: object) -> None:
        if isinstance(wanted, Refused):
            assert isinstance(outcome, wanted.kinds), (wanted, outcome)
            assert isinstance(outcome, HivememError)
            assert wanted.metadata.items() <= outcome.metadata.items(), (wanted, outcome.metadata)
            return
        assert isinstance(outcome, AppendOutcome), (wanted, outcome)
        stored = [(each.position, each.revision) for each in outcome.stored]
        assert (outcome.deduplicated, stored) == wanted
        for episode, each in zip(append.episodes, outcome.stored, strict=True):
            assert self.times.setdefault(episode.episode_id, each.commit_time) == each.commit_time

    def teardown(self) -> None:
        if hasattr(self, "model"):
            records, bounds, threads, decisions = self.world.run(self._read())
            assert [_seen(record) for record in records] == [
                _expected(position, record) for position, record in enumerate(self.model.records, 1)
            ]
            assert bounds.head.position == len(self.model.records)
            assert threads == self.model.threads
            assert decisions == self.model.decisions
            assert [record.time for record in records] == sorted(record.time for record in records)

    async def _read(self) -> tuple[list[LogRecord], Any, dict[str, int], dict[str, bool]]:
        everything = Filter(record_kinds=(RecordKind.EPISODE, RecordKind.THREAD_EVENT))
        log = self.world.logs[1]
        window = await log.window(self.namespace, everything, 0, 10_000, 10_000)
        return list(window.records), await log.bounds(self.namespace), *await self.world.links(self.namespace)


def _seen(record: LogRecord) -> tuple[object, ...]:
    content = record.content
    if isinstance(content, Episode):
        sent = {each.name: getattr(content, each.name) for each in dataclasses.fields(NewEpisode)}
        return record.position, content.session_id, content.agent_id, content.revision, NewEpisode(**sent)
    return record.position, content.thread_id, content.type, content.agent_id, content.episode_id


def _expected(position: int, record: Kept | tuple[str, ThreadEventType, Kept]) -> tuple[object, ...]:
    if isinstance(record, Kept):
        session_id, agent_id, episode = record.sent
        return position, session_id, agent_id, record.revision, episode
    thread_id, how, by = record
    return position, thread_id, how, by.sent[1], by.sent[2].episode_id


async def _try(database_url: str, examples: int, steps: int) -> None:
    chosen = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, database=None, print_blob=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    async with Database(database_url, size=CONNECTIONS) as one, Database(database_url, size=CONNECTIONS) as two:
        world = World(asyncio.get_running_loop(), one, two)
        machine = type("Machine", (AppendMachine,), {"world": world})
        await asyncio.to_thread(run_state_machine_as_test, machine, settings=chosen)


@pytest.mark.timeout(600)  # most of it to make a failure small
async def test_the_appender_and_a_list_say_the_same(database_url: str) -> None:
    await _try(database_url, 40, 12)


@pytest.mark.soak
@pytest.mark.timeout(3_000)
async def test_the_appender_and_a_list_say_the_same_of_very_many_histories(database_url: str) -> None:
    await _try(database_url, 3_000, 40)
