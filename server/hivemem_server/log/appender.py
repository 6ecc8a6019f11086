"""Commits appends. One commit at a time for each namespace; what arrives meanwhile becomes the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hivemem_server.domain.appends import Append
from hivemem_server.domain.errors import Draining, HivememError, Overloaded, Unavailable
from hivemem_server.domain.ports import LogStore
from hivemem_server.domain.values import AppendOutcome, Namespace

# What may wait in this process; more is turned away.
PENDING_MOST = 4_096
PENDING_BYTES = 256 * 1024 * 1024
# What one commit takes: more makes no commit cheaper, but holds the namespace's lock for longer.
COMMIT_APPENDS = 256
COMMIT_EPISODES = 1_000
COMMIT_BYTES = 4 * 1024 * 1024


@dataclass(slots=True, eq=False)
class _Waiting:
    append: Append
    outcome: asyncio.Future[AppendOutcome]


@dataclass(slots=True, eq=False)
class _Lane:
    """The appends of one namespace, and the task that commits them while there are any."""

    namespace: Namespace
    waiting: deque[_Waiting] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class Appender:
    """Group commit in front of a LogStore.

    A caller that is cancelled or times out stops waiting; the commit goes on. `committed` is told the namespace and the
    newest position after each commit. `draining` is set once new appends are turned away.
    """

    def __init__(self, store: LogStore, committed: Callable[[Namespace, int], None]) -> None:
        self._store = store
        self._committed = committed
        self._lanes: dict[int, _Lane] = {}
        self.draining = asyncio.Event()
        self.pending = 0
        self._pending_bytes = 0

    async def append(self, namespace: Namespace, append: Append) -> AppendOutcome:
        """Stores one append durably, or raises why it was refused."""
        return await self.submit(namespace, append)

    def submit(self, namespace: Namespace, append: Append) -> asyncio.Future[AppendOutcome]:
        """Puts one append in line at once, behind those submitted before. Raises Draining, Overloaded."""
        if self.draining.is_set():
            raise Draining("the server is stopping: send the append again, to another replica where there is one")
        if self.pending >= PENDING_MOST or self._pending_bytes + append.size > PENDING_BYTES:
            raise Overloaded(f"{self.pending} appends wait for their commit: try again shortly", pending=self.pending)
        waiting = _Waiting(append, asyncio.get_running_loop().create_future())
        waiting.outcome.add_done_callback(_retrieved)  # its caller may be gone
        lane = self._lanes.setdefault(namespace.key, _Lane(namespace))
        lane.waiting.append(waiting)
        self.pending += 1
        self._pending_bytes += append.size
        if lane.task is None:
            lane.task = asyncio.create_task(self._commit_all(lane), name=f"append {namespace.name}")
        return waiting.outcome

    async def drain(self, seconds: float) -> None:
        """Turns new appends away and waits until those that were accepted are answered, but no longer than that."""
        self.draining.set()
        tasks = [lane.task for lane in self._lanes.values() if lane.task]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()

    async def _commit_all(self, lane: _Lane) -> None:
        """Commits what waits until nothing does. However it ends, nobody is left waiting."""
        batch: list[_Waiting] = []
        try:
            while batch := _next_batch(lane.waiting):
                unavailable = await self._commit(lane.namespace, batch)
                if unavailable:  # what lies behind fails too: else an append could overtake the one it followed
                    batch += lane.waiting
                    lane.waiting.clear()
                    _answer(batch, [unavailable] * len(batch))
                self._answered(batch)
        finally:
            left = [*batch, *lane.waiting]
            self._answered(left)
            _answer(left, [Draining("the server stopped before the append was committed")] * len(left))
            lane.task = None
            self._lanes.pop(lane.namespace.key, None)

    def _answered(self, batch: Sequence[_Waiting]) -> None:
        """Makes room for others."""
        self.pending -= len(batch)
        self._pending_bytes -= sum(waiting.append.size for waiting in batch)

    async def _commit(self, namespace: Namespace, batch: Sequence[_Waiting]) -> Unavailable | None:
        """Commits and answers a batch; returns why it could not, if the outcome is not known."""
        try:
            outcomes = await self._store.append(namespace, [waiting.append for waiting in batch])
        except Unavailable as error:
            return error
        except Exception as error:
            if len(batch) == 1:
                _answer(batch, [error])
                return None
            # One of them hits a fault of ours: it must not take the others with it.
            for number, waiting in enumerate(batch):
                if unavailable := await self._commit(namespace, [waiting]):
                    _answer(batch[number:], [unavailable] * (len(batch) - number))
                    return unavailable
        else:
            _answer(batch, outcomes)
            self._committed(namespace, max((_last_position(outcome) for outcome in outcomes), default=0))
        return None


def _next_batch(waiting: deque[_Waiting]) -> list[_Waiting]:
    """What the next commit takes: at least one append, and as many behind it as fit."""
    batch: list[_Waiting] = []
    episodes = size = 0
    while waiting and len(batch) < COMMIT_APPENDS:
        episodes += len(waiting[0].append.episodes)
        size += waiting[0].append.size
        if batch and (episodes > COMMIT_EPISODES or size > COMMIT_BYTES):
            break
        batch.append(waiting.popleft())
    return batch


def _answer(batch: Sequence[_Waiting], outcomes: Sequence[AppendOutcome | HivememError | Exception]) -> None:
    for waiting, outcome in zip(batch, outcomes, strict=True):
        if waiting.outcome.done():  # the caller is gone
            continue
        if isinstance(outcome, Exception):
            waiting.outcome.set_exception(outcome)
        else:
            waiting.outcome.set_result(outcome)


def _retrieved(outcome: asyncio.Future[AppendOutcome]) -> None:
    if not outcome.cancelled():
        outcome.exception()


def _last_position(outcome: AppendOutcome | HivememError) -> int:
    return outcome.stored[-1].position if isinstance(outcome, AppendOutcome) else 0
