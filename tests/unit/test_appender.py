"""The appender: what arrives during a commit is the next one, faults stay alone, unknown outcomes keep the order."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
from hivemem_server.domain.appends import Append
from hivemem_server.domain.errors import DatabaseUnavailable, Draining, HivememError, Overloaded
from hivemem_server.domain.ports import LogStore
from hivemem_server.domain.values import AppendOutcome, Namespace, NamespaceSettings, NewEpisode, Stored
from hivemem_server.log import appender as module
from hivemem_server.log.appender import Appender

NOW = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
NAMESPACE = Namespace(
    key=1, name="n", epoch=uuid.uuid4(), digest_key=b"", settings=NamespaceSettings(), floor=0, head=0,
    create_time=NOW, update_time=NOW,
)  # fmt: skip


def append(summary: str) -> Append:
    episode = NewEpisode(episode_id=uuid.uuid4(), summary=summary)
    return Append(session_id="s", agent_id="a", episodes=(episode,))


class HeldStore:
    """Records batches; each commit waits to be let go, then fails as its first `bug` or `away` episode says."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self.position = 0

    async def append(self, _: Namespace, appends: Sequence[Append]) -> list[AppendOutcome | HivememError]:
        summaries = [one.episodes[0].summary for one in appends]
        self.batches.append(summaries)
        self.entered.set()
        await self.gate.wait()
        if "bug" in summaries:
            raise ValueError("a bug")
        if "away" in summaries:
            raise DatabaseUnavailable("away")
        return [self._stored() for _ in appends]

    def _stored(self) -> AppendOutcome:
        self.position += 1
        stored = Stored(position=self.position, revision=self.position, commit_time=NOW)
        return AppendOutcome(stored=(stored,), deduplicated=False)


def made() -> tuple[HeldStore, Appender, list[int]]:
    store, heads = HeldStore(), list[int]()
    return store, Appender(cast(LogStore, store), lambda _, position: heads.append(position)), heads


async def submitted(appender: Appender, *summaries: str) -> list[asyncio.Future[AppendOutcome]]:
    return [appender.submit(NAMESPACE, append(summary)) for summary in summaries]


async def test_what_arrives_during_a_commit_is_the_next_one() -> None:
    store, appender, heads = made()
    first = await submitted(appender, "1")
    await store.entered.wait()
    rest = await submitted(appender, "2", "3", "4")
    store.gate.set()
    outcomes = await asyncio.gather(*first, *rest)
    assert store.batches == [["1"], ["2", "3", "4"]]
    assert [outcome.stored[0].position for outcome in outcomes] == [1, 2, 3, 4]
    assert heads == [1, 4]
    assert appender.pending == 0


async def test_one_that_hits_a_fault_of_ours_does_not_take_the_others_with_it() -> None:
    store, appender, _ = made()
    store.gate.set()
    outcomes = await asyncio.gather(*await submitted(appender, "1", "bug", "2"), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [AppendOutcome, ValueError, AppendOutcome]
    assert appender.pending == 0


async def test_an_unknown_outcome_fails_all_that_wait_behind_it_and_nothing_after() -> None:
    store, appender, _ = made()
    first = await submitted(appender, "away")
    await store.entered.wait()
    behind = await submitted(appender, "2", "3")
    store.gate.set()
    outcomes = await asyncio.gather(*first, *behind, return_exceptions=True)
    assert all(isinstance(outcome, DatabaseUnavailable) for outcome in outcomes)
    assert store.batches == [["away"]]
    assert (await appender.append(NAMESPACE, append("4"))).stored[0].position == 1


async def test_an_unknown_outcome_beside_a_fault_of_ours_fails_what_comes_after_it() -> None:
    store, appender, _ = made()
    store.gate.set()
    outcomes = await asyncio.gather(*await submitted(appender, "1", "bug", "away", "2"), return_exceptions=True)
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [AppendOutcome, ValueError, DatabaseUnavailable, DatabaseUnavailable]
    assert store.batches[1:] == [["1"], ["bug"], ["away"]]
    assert appender.pending == 0


async def test_more_than_may_wait_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_MOST", 3)
    store, appender, _ = made()
    waiting = await submitted(appender, "1", "2", "3")
    with pytest.raises(Overloaded):
        appender.submit(NAMESPACE, append("4"))
    store.gate.set()
    await asyncio.gather(*waiting)
    await appender.append(NAMESPACE, append("5"))


async def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_APPENDS", 2)
    store, appender, _ = made()
    store.gate.set()
    await asyncio.gather(*await submitted(appender, *"12345"))
    assert store.batches == [["1", "2"], ["3", "4"], ["5"]]


async def test_a_batch_is_bounded_in_episodes_and_one_append_is_never_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_EPISODES", 4)
    store, appender, _ = made()
    store.gate.set()
    sizes = {"a": 3, "b": 1, "c": 2, "d": 9, "e": 1}
    waiting = [appender.submit(NAMESPACE, _large(summary, size)) for summary, size in sizes.items()]
    await asyncio.gather(*waiting)
    assert store.batches == [["a", "b"], ["c"], ["d"], ["e"]]


def _large(summary: str, size: int) -> Append:
    return replace(append(summary), episodes=append(summary).episodes * size)


async def test_a_batch_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_BYTES", 100)
    store, appender, _ = made()
    store.gate.set()
    sizes = {"a": 60, "b": 40, "c": 1, "d": 200, "e": 1}
    await asyncio.gather(
        *(appender.submit(NAMESPACE, replace(append(name), size=size)) for name, size in sizes.items())
    )
    assert store.batches == [["a", "b"], ["c"], ["d"], ["e"]]


async def test_more_bytes_than_may_wait_are_turned_away_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_BYTES", 100)
    store, appender, _ = made()
    waiting = appender.submit(NAMESPACE, replace(append("1"), size=90))
    with pytest.raises(Overloaded):
        appender.submit(NAMESPACE, replace(append("2"), size=11))
    store.gate.set()
    await waiting
    await appender.append(NAMESPACE, replace(append("3"), size=100))


async def test_a_caller_that_goes_away_does_not_take_the_commit_with_it() -> None:
    store, appender, _ = made()
    gone, stays = await submitted(appender, "1", "2")
    await store.entered.wait()
    behind, behind_and_gone = await submitted(appender, "3", "4")
    gone.cancel()
    behind_and_gone.cancel()
    await asyncio.sleep(0)  # whatever the cancellation sets off
    store.gate.set()
    assert [(await each).stored[0].position for each in (stays, behind)] == [2, 3]
    assert store.batches == [["1", "2"], ["3", "4"]]


async def test_draining_waits_for_what_was_accepted_and_takes_nothing_new() -> None:
    store, appender, _ = made()
    (accepted,) = await submitted(appender, "1")
    draining = asyncio.create_task(appender.drain(10))
    await store.entered.wait()
    with pytest.raises(Draining):
        appender.submit(NAMESPACE, append("2"))
    store.gate.set()
    await draining
    assert accepted.done()


async def test_draining_ends_though_a_commit_does_not() -> None:
    _, appender, _ = made()
    (held,) = await submitted(appender, "1")
    await appender.drain(0.01)
    with pytest.raises(Draining):
        await held


async def test_outcomes_that_nobody_waits_for_are_not_complained_of(caplog: pytest.LogCaptureFixture) -> None:
    store, appender, _ = made()
    store.gate.set()
    for waiting in [appender.submit(NAMESPACE, append(summary)) for summary in ("away", "1", "2")]:
        await asyncio.wait({waiting})
    del waiting
    gc.collect()
    assert not caplog.records
