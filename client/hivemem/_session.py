"""Handles: a session, and an agent that writes to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hivemem import _convert
from hivemem._models import NewEpisode
from hivemem._writer import Writer
from hivemem.v1 import episode_service_pb2 as episode_messages
from hivemem.v1 import session_service_pb2 as session_messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
    from datetime import datetime
    from typing import Unpack

    from hivemem import _models
    from hivemem._client import Client, Narrowing, Searching, Subscribing, Waiting
    from hivemem._subscription import Subscription


class Session:
    """One shared piece of work. Made by `Client.session` and `Client.get_session`."""

    def __init__(self, client: Client, info: _models.SessionInfo, *, created: bool) -> None:
        self._client = client
        # What was known of the session when it was last asked for or changed through this handle.
        self.info = info
        # Whether `Client.session` made it; False if it was there already.
        self.created = created

    @property
    def session_id(self) -> str:
        """Its id."""
        return self.info.session_id

    def __repr__(self) -> str:
        return f"<hivemem.Session {self.session_id!r} in {self.info.namespace!r}>"

    def agent(self, agent_id: str) -> Agent:
        """A handle for an agent of that id. The agent exists from its first episode on; this asks nobody."""
        return Agent(self._client, self.session_id, agent_id)

    def subscribe(self, **choices: Unpack[Subscribing]) -> Subscription:
        """Follows the episodes of this session; see `Client.subscribe`."""
        choices["sessions"] = [self.session_id]
        return self._client.subscribe(**choices)

    async def wait(self, **choices: Unpack[Waiting]) -> _models.Batch:
        """The next episodes of this session, as soon as there are any; see `Client.wait`."""
        choices["sessions"] = [self.session_id]
        return await self._client.wait(**choices)

    async def search(self, text: str, **choices: Unpack[Searching]) -> _models.SearchResult:
        """The episodes of this session that fit best; see `Client.search`."""
        choices["sessions"] = [self.session_id]
        return await self._client.search(text, **choices)

    def episodes(self, *, newest_first: bool = False, **choices: Unpack[Narrowing]) -> AsyncIterator[_models.Episode]:
        """The episodes of this session in log order; see `Client.episodes`."""
        choices["sessions"] = [self.session_id]
        return self._client.episodes(newest_first=newest_first, **choices)

    async def episode(self, key: str | int, *, before: int = 0, after: int = 0) -> _models.EpisodeWithNeighbours:
        """One episode, by id or position, with its neighbours in its session; see `Client.episode`."""
        return await self._client.episode(key, before=before, after=after)

    def threads(
        self, *, states: Iterable[_models.ThreadState | str] = (), order: _models.ThreadOrder | str = "oldest_first"
    ) -> AsyncIterator[_models.Thread]:
        """The threads that were opened in this session; see `Client.threads`."""
        return self._client.threads(states=states, sessions=[self.session_id], order=order)

    async def resume(
        self,
        *,
        agent_id: str | None = None,
        since: bytes | None = None,
        max_episodes: int | None = None,
        max_tokens: int | None = None,
    ) -> _models.Resumed:
        """What an agent needs to go on in this session; see `Client.resume`."""
        return await self._client.resume(
            session_id=self.session_id, agent_id=agent_id, since=since, max_episodes=max_episodes, max_tokens=max_tokens
        )

    async def refresh(self) -> _models.SessionInfo:
        """Asks for what is known of the session now."""
        request = session_messages.GetSessionRequest(namespace=self._client.namespace, session_id=self.session_id)
        response = await self._client._connection.call(lambda to: to.sessions.GetSession, request)
        self.info = _convert.session_info(response.session)
        return self.info

    async def update(self, *, goal: str | None = None, labels: Mapping[str, str] | None = None) -> _models.SessionInfo:
        """Changes the goal, or all labels, or both. None leaves as it is; an empty value clears."""
        request = session_messages.UpdateSessionRequest(
            namespace=self._client.namespace, session_id=self.session_id, goal=goal or "", labels=labels or {}
        )
        changes = {"goal": goal, "labels": labels}
        request.update_mask.paths.extend(name for name, value in changes.items() if value is not None)
        response = await self._client._connection.call(lambda to: to.sessions.UpdateSession, request)
        self.info = _convert.session_info(response.session)
        return self.info

    async def close(self) -> _models.SessionInfo:
        """Closes the session: no append succeeds afterwards. Closing a closed one changes nothing."""
        request = session_messages.CloseSessionRequest(namespace=self._client.namespace, session_id=self.session_id)
        response = await self._client._connection.call(lambda to: to.sessions.CloseSession, request)
        self.info = _convert.session_info(response.session)
        return self.info


class Agent:
    """An agent that writes to a session. Made by `Session.agent`."""

    def __init__(self, client: Client, session_id: str, agent_id: str) -> None:
        self._client = client
        self.session_id = session_id
        self.agent_id = agent_id

    def __repr__(self) -> str:
        return f"<hivemem.Agent {self.agent_id!r} in session {self.session_id!r}>"

    async def append(
        self,
        *,
        summary: str,
        decisions: Sequence[str | _models.NewDecision] = (),
        open_threads: Sequence[str | _models.NewThread] = (),
        resolves: Sequence[str | _models.ThreadReference] = (),
        drops: Sequence[str | _models.ThreadReference] = (),
        supersedes_threads: Sequence[str | _models.ThreadReference] = (),
        tags: Sequence[str] = (),
        kind: str | None = None,
        attributes: _models.Attributes | None = None,
        turn: int | None = None,
        event_time: datetime | None = None,
        to_agents: Sequence[str] = (),
        episode_id: str | None = None,
        expect: _models.Expectation | None = None,
        conditions: Iterable[_models.AppendCondition] = (),
    ) -> _models.Appended:
        """Appends one episode. When it returns the episode is durable, and in its place in the log.

        A call whose answer got lost is repeated with the same episode id, so that nothing is stored twice;
        `deduplicated` is true then. The parameters are those of `NewEpisode` and of `append_all`.
        """
        given = {"episode_id": episode_id} if episode_id is not None else {}
        episode = NewEpisode(
            summary=summary,
            decisions=decisions,
            open_threads=open_threads,
            resolves=resolves,
            drops=drops,
            supersedes_threads=supersedes_threads,
            tags=tags,
            kind=kind,
            attributes=attributes or {},
            turn=turn,
            event_time=event_time,
            to_agents=to_agents,
            **given,
        )
        return (await self.append_all([episode], expect=expect, conditions=conditions))[0]

    async def append_all(
        self,
        episodes: Iterable[NewEpisode],
        *,
        expect: _models.Expectation | None = None,
        conditions: Iterable[_models.AppendCondition] = (),
        writer_fence: int | None = None,
        timeout: float | None = None,
    ) -> tuple[_models.Appended, ...]:
        """Appends 1 to 500 episodes, all or none, and says where each was stored, in the order given.

        `expect` is what the writer believes of its stream (RevisionConflict if it is wrong); `conditions` fail
        the append if there is news that the writer has not seen (ConditionFailed).
        """
        request = episode_messages.AppendEpisodesRequest(
            namespace=self._client.namespace,
            session_id=self.session_id,
            agent_id=self.agent_id,
            expectation=_convert.expectation_message(expect),
            conditions=map(_convert.condition_message, conditions),
            writer_fence=writer_fence or 0,
            episodes=map(_convert.new_episode_message, episodes),
        )
        response = await self._client._connection.call(lambda to: to.episodes.AppendEpisodes, request, timeout)
        return _convert.appended(response)

    def writer(
        self,
        *,
        max_pending: int = 256,
        max_pending_bytes: int = 8 << 20,
        writer_fence: int | None = None,
        timeout: float | None = None,
    ) -> Writer:
        """For many appends without waiting for each: `async with agent.writer() as writer`; see `Writer`.

        At most `max_pending` appends and `max_pending_bytes` wait for their answer. `timeout`, in seconds, is how
        long the server may be away before they fail; the client's if not given.
        """
        opening = episode_messages.AppendEpisodeStreamRequest.Open(
            namespace=self._client.namespace,
            session_id=self.session_id,
            agent_id=self.agent_id,
            writer_fence=writer_fence or 0,
        )
        return Writer(
            self._client._connection,
            opening,
            max_pending=max_pending,
            max_pending_bytes=max_pending_bytes,
            timeout=timeout,
        )
