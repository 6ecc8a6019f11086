"""The client: where everything starts."""

from __future__ import annotations

import dataclasses
import os
import weakref
from typing import TYPE_CHECKING, Any, TypedDict

from hivemem import _convert
from hivemem._channel import DEFAULT_PORT, Connection
from hivemem._models import Filter, NamespaceSettings, Start
from hivemem._session import Session
from hivemem._subscription import Subscription
from hivemem.v1 import admin_service_pb2 as admin_messages
from hivemem.v1 import episode_service_pb2 as episode_messages
from hivemem.v1 import namespace_service_pb2 as namespace_messages
from hivemem.v1 import search_service_pb2 as search_messages
from hivemem.v1 import session_service_pb2 as session_messages
from hivemem.v1 import thread_service_pb2 as thread_messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType
    from typing import Self, Unpack

    from hivemem import _models
    from hivemem._channel import Channel, ChannelCredentials
    from hivemem.v1 import types_pb2 as types_messages


class Narrowing(TypedDict, total=False):
    """The words that narrow down episodes everywhere. What is not given restricts nothing.

    They are short forms of fields of `Filter` and take the place of those of `filter`, which has the rest.
    """

    sessions: Sequence[str]
    agents: Sequence[str]
    exclude_agents: Sequence[str]
    users: Sequence[str]
    kinds: Sequence[str]
    # With at least one of these tags; with every one of them.
    tags: Sequence[str]
    all_tags: Sequence[str]
    # Addressed to one of these agents.
    to_agents: Sequence[str]
    filter: Filter | None


class Searching(Narrowing, total=False):
    """The choices of a search."""

    # Hits at most: 10 if not given, at most 100.
    limit: int
    # Lowest score of a hit, 0 to 1.
    min_score: float
    options: _models.SearchOptions
    # Whether hits come with the parts of their scores.
    explain: bool
    # Searches the log as it was at this position.
    as_of_position: int
    # Waits until this position is indexed; IndexBehind if the timeout is over before.
    wait_for_position: int
    # Embedding model to search with.
    model: str
    # Seconds, in place of the client's.
    timeout: float


class Reading(Narrowing, total=False):
    """The choices of whoever reads the log from a point on."""

    # Where to start: after a cursor, a position or a time; the beginning if not given.
    after: bytes | int | datetime | Start | None
    # Kinds of log records for `records`: episodes only if not given.
    record_kinds: Sequence[_models.RecordKind | str]
    # Only what is close to this text in meaning, each once it is indexed, in log order, with its score.
    relevant_to: str | None
    # Lowest score of that, 0 to 1: the model's own threshold if not given.
    min_score: float | None
    # Records that the client holds at most: 500 if not given, at most 1,000.
    max_batch_size: int


class Subscribing(Reading, total=False):
    """The choices of a subscription."""

    # Longest silence of the server in seconds, 1 to 60: 10 if not given. A stream is dead after three.
    heartbeat: float
    # Name of a cursor to start after, if there is one, and to commit for each batch that is finished with.
    durable: str
    # Ends it, as a list ends, once everything that was there has been given out.
    until_caught_up: bool


class Waiting(Reading, total=False):
    """The choices of a wait."""

    # Longest wait in seconds, at most 60: 30 if not given. 0 only looks.
    timeout: float


_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 30.0, 60.0
_SHORT_FORMS = {
    "sessions": "session_ids",
    "agents": "agent_ids",
    "exclude_agents": "exclude_agent_ids",
    "users": "user_ids",
    "kinds": "kinds",
    "tags": "any_tags",
    "all_tags": "all_tags",
    "to_agents": "to_agents",
}


class Client:
    """One namespace of a hivemem server.

        async with hivemem.Client("localhost:7400") as memory: …

    It connects at the first call, and finds its way back when the server was away. Without an address it
    takes the environment variable HIVEMEM_ADDRESS, or else 127.0.0.1:7400. Every call ends within `timeout`
    seconds: until then it is tried again if the server cannot be reached or is too busy, which never does a
    thing twice; then the last error is raised. Errors are HivememError and its subclasses.

    Use it in one event loop only, and make no more than one of a process: all its calls share a connection.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        namespace: str = "default",
        timeout: float = 10.0,
        credentials: ChannelCredentials | None = None,
    ) -> None:
        address = address or os.environ.get("HIVEMEM_ADDRESS") or f"127.0.0.1:{DEFAULT_PORT}"
        self.namespace = namespace
        self._connection = Connection(address, timeout=timeout, credentials=credentials)
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()

    @property
    def address(self) -> str:
        """Where the server is."""
        return self._connection.address

    def __repr__(self) -> str:
        return f"<hivemem.Client of {self.address} in namespace {self.namespace!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends all subscriptions and calls, and closes the connection."""
        for subscription in list(self._subscriptions):
            await subscription.aclose()
        await self._connection.close()

    async def connect(self, timeout: float | None = None) -> None:
        """Waits until the server answers; ConnectionFailed if it does not. Calls do it by themselves."""
        request = namespace_messages.GetNamespaceRequest(namespace=self.namespace)
        await self._connection.call(lambda to: to.namespaces.GetNamespace, request, timeout)

    # ---- sessions ------------------------------------------------------------------------------------------

    async def session(
        self,
        session_id: str,
        *,
        user_id: str | None = None,
        goal: str | None = None,
        labels: Mapping[str, str] | None = None,
        continues: str | Session | None = None,
    ) -> Session:
        """Makes a session, or returns the one there if it has the same user (SessionExists if another).

        Goal, labels and `continues`, the earlier session that it goes on from, are for a new one only.
        """
        if isinstance(continues, Session):
            continues = continues.session_id
        request = session_messages.CreateSessionRequest(
            namespace=self.namespace,
            session_id=session_id,
            user_id=user_id or "",
            goal=goal or "",
            labels=labels or {},
            continues_session_id=continues or "",
        )
        response = await self._connection.call(lambda to: to.sessions.CreateSession, request)
        return Session(self, _convert.session_info(response.session), created=response.created)

    async def get_session(self, session_id: str) -> Session:
        """A session that is there, whoever its user is; SessionNotFound if it is not."""
        request = session_messages.GetSessionRequest(namespace=self.namespace, session_id=session_id)
        response = await self._connection.call(lambda to: to.sessions.GetSession, request)
        return Session(self, _convert.session_info(response.session), created=False)

    async def sessions(
        self,
        *,
        user_id: str | None = None,
        users: Iterable[str] = (),
        state: _models.SessionState | str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> AsyncIterator[_models.SessionInfo]:
        """All sessions that match, the one made last first."""
        request = session_messages.ListSessionsRequest(
            namespace=self.namespace,
            user_ids=[*([user_id] if user_id else []), *_convert.listed("users", users)],
            state=_convert.session_state_number(state),
            labels=labels or {},
        )
        async for message in self._pages(lambda to: to.sessions.ListSessions, request, "sessions"):
            yield _convert.session_info(message)

    async def resume(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        since: bytes | None = None,
        max_episodes: int | None = None,
        max_tokens: int | None = None,
        max_summaries: int | None = None,
        max_injected_summaries: int | None = None,
    ) -> _models.Resumed:
        """What an agent needs to go on where a session stopped: this session, or the user's latest open one.

        A user without any session gets an empty answer. `agent_id` is who resumes; `since`, a cursor, is where
        its reading stopped and asks for `away`.
        """
        if (user_id is None) == (session_id is None):
            raise TypeError("resume takes either user_id or session_id")
        request = session_messages.ResumeSessionRequest(
            namespace=self.namespace,
            **({"user_id": user_id} if user_id is not None else {"session_id": session_id or ""}),
            agent_id=agent_id or "",
            since_cursor=since or b"",
            max_episodes=max_episodes or 0,
            max_tokens=max_tokens or 0,
            max_summaries=max_summaries or 0,
            max_injected_summaries=max_injected_summaries or 0,
        )
        return _convert.resumed(await self._connection.call(lambda to: to.sessions.ResumeSession, request))

    # ---- episodes ------------------------------------------------------------------------------------------

    async def episode(
        self, key: str | int, *, before: int = 0, after: int = 0, of_stream: bool = False
    ) -> _models.EpisodeWithNeighbours:
        """One episode, by its id or its position, with up to 20 of those right before and after it.

        They are those of its session, of all agents; with `of_stream` those of its agent only.
        """
        scopes = episode_messages.NeighbourScope
        request = episode_messages.GetEpisodeRequest(
            namespace=self.namespace,
            before=before,
            after=after,
            neighbour_scope=scopes.NEIGHBOUR_SCOPE_STREAM if of_stream else scopes.NEIGHBOUR_SCOPE_SESSION,
        )
        if isinstance(key, str):
            request.episode_id = key
        else:
            request.position = key
        response = await self._connection.call(lambda to: to.episodes.GetEpisode, request)
        return _convert.episode_with_neighbours(response)

    async def episodes(
        self, *, newest_first: bool = False, **choices: Unpack[Narrowing]
    ) -> AsyncIterator[_models.Episode]:
        """All episodes that match, in log order. None is repeated or missed, whatever is appended."""
        orders = episode_messages.ListOrder
        request = episode_messages.ListEpisodesRequest(
            namespace=self.namespace,
            filter=_filter_message(Narrowing, choices),
            order=orders.LIST_ORDER_NEWEST_FIRST if newest_first else orders.LIST_ORDER_OLDEST_FIRST,
        )
        async for message in self._pages(lambda to: to.episodes.ListEpisodes, request, "episodes"):
            yield _convert.episode(message)

    def subscribe(self, **choices: Unpack[Subscribing]) -> Subscription:
        """Follows the log: what is there after the start, then what comes. See `Subscription`.

        With `durable`, a name, it goes on where the last subscription of that name stopped; `after` is for the first
        one only. Give each reader a name of its own: of two that share one, the slower ends with CursorConflict.
        With `relevant_to` it raises EmbedderUnavailable if the server cannot tell at the start what is close; later
        that is an outage like others.
        """
        after = choices.get("after")
        request = episode_messages.SubscribeEpisodesRequest(
            namespace=self.namespace,
            start=_convert.start_message(Start.BEGINNING if after is None else after),
            filter=_filter_message(Subscribing, choices),
            record_kinds=_convert.record_kind_numbers(choices.get("record_kinds", ())),
            relevance=_convert.relevance_message(choices.get("relevant_to"), choices.get("min_score")),
            heartbeat_interval=_convert.duration_message(choices.get("heartbeat")),
            max_batch_size=choices.get("max_batch_size", 0),
        )
        subscription = Subscription(
            self._connection,
            request,
            durable=choices.get("durable"),
            until_caught_up=choices.get("until_caught_up", False),
        )
        self._subscriptions.add(subscription)
        return subscription

    async def wait(self, **choices: Unpack[Waiting]) -> _models.Batch:
        """The next episodes after a point, as soon as there are any; none when the timeout is over.

        For those who cannot hold a subscription open: call it again with `after=batch.cursor`, and nothing is missed
        or repeated.
        """
        after, timeout = choices.get("after"), choices.get("timeout", _WAIT_SECONDS)
        request = episode_messages.WaitEpisodesRequest(
            namespace=self.namespace,
            start=_convert.start_message(Start.BEGINNING if after is None else after),
            filter=_filter_message(Waiting, choices),
            record_kinds=_convert.record_kind_numbers(choices.get("record_kinds", ())),
            relevance=_convert.relevance_message(choices.get("relevant_to"), choices.get("min_score")),
            timeout=_convert.duration_message(timeout),
            max_batch_size=choices.get("max_batch_size", 0),
        )
        longest = min(max(timeout, 0.0), _LONGEST_WAIT_SECONDS) + self._connection.timeout
        return _convert.batch(await self._connection.call(lambda to: to.episodes.WaitEpisodes, request, longest))

    async def commit_cursor(self, name: str, cursor: bytes, *, expected: bytes | None = None) -> int:
        """Stores a cursor under a name, for whoever goes on from it; returns its position.

        It only moves forwards, else CursorConflict; also if `expected`, the cursor that is thought to be stored, is
        another (b"" for none). What is stored already may be stored again, so that sending twice does no harm. One
        that a cut or restored log made useless is replaced by any good one.
        """
        request = episode_messages.CommitCursorRequest(
            namespace=self.namespace, name=name, cursor=cursor, expected_cursor=expected
        )
        return (await self._connection.call(lambda to: to.episodes.CommitCursor, request)).position

    async def cursor(self, name: str) -> _models.NamedCursor:
        """The cursor that is stored under a name; CursorNotFound if there is none."""
        request = episode_messages.GetCursorRequest(namespace=self.namespace, name=name)
        response = await self._connection.call(lambda to: to.episodes.GetCursor, request)
        return _convert.named_cursor(name, response)

    # ---- search --------------------------------------------------------------------------------------------

    async def search(self, text: str, **choices: Unpack[Searching]) -> _models.SearchResult:
        """The episodes of this namespace that fit best, by meaning and by words together, best first.

        Words are found as soon as their append has returned, meaning once it is indexed (`indexed_position`).
        """
        request = search_messages.SearchEpisodesRequest(
            namespace=self.namespace,
            text=text,
            filter=_filter_message(Searching, choices),
            limit=choices.get("limit", 0),
            min_score=choices.get("min_score", 0.0),
            options=_convert.search_options_message(choices.get("options")),
            explain=choices.get("explain", False),
            as_of_position=choices.get("as_of_position", 0),
            wait_for_position=choices.get("wait_for_position", 0),
            model=choices.get("model", ""),
        )
        timeout = choices.get("timeout")
        response = await self._connection.call(lambda to: to.searches.SearchEpisodes, request, timeout)
        return _convert.search_result(response)

    async def relevant(
        self, context: str, *, user_id: str | None = None, **choices: Unpack[Searching]
    ) -> _models.SearchResult:
        """What matters for what an agent is about to do: five hits, of all sessions of a user if given."""
        choices.setdefault("limit", 5)
        if user_id is not None:
            choices["users"] = [user_id]
        return await self.search(context, **choices)

    # ---- threads, namespaces, numbers ----------------------------------------------------------------------

    async def threads(
        self,
        *,
        states: Iterable[_models.ThreadState | str] = (),
        sessions: Iterable[str] = (),
        users: Iterable[str] = (),
        agents: Iterable[str] = (),
        tags: Iterable[str] = (),
        plans: Iterable[str] = (),
        order: _models.ThreadOrder | str = "oldest_first",
    ) -> AsyncIterator[_models.Thread]:
        """All threads that match, in every state if none is given. `agents` are those that opened them."""
        chosen = thread_messages.ThreadFilter(
            states=_convert.thread_state_numbers(states),
            session_ids=_convert.listed("sessions", sessions),
            user_ids=_convert.listed("users", users),
            agent_ids=_convert.listed("agents", agents),
            any_tags=_convert.listed("tags", tags),
            plan_ids=_convert.listed("plans", plans),
        )
        request = thread_messages.ListThreadsRequest(
            namespace=self.namespace, filter=chosen, order=_convert.thread_order_number(order)
        )
        async for message in self._pages(lambda to: to.threads.ListThreads, request, "threads"):
            yield _convert.thread(message)

    async def create_namespace(
        self, namespace: str, settings: _models.NamespaceSettings | None = None
    ) -> _models.NamespaceInfo:
        """Makes a namespace, or returns the one there if its settings are the same (else NamespaceExists).

        This client stays in its own; make another one with `namespace=…` to use it.
        """
        request = namespace_messages.CreateNamespaceRequest(
            namespace=namespace, settings=_convert.namespace_settings_message(settings or NamespaceSettings())
        )
        response = await self._connection.call(lambda to: to.namespaces.CreateNamespace, request)
        return _convert.namespace_info(response.namespace)

    async def namespaces(self) -> AsyncIterator[_models.NamespaceInfo]:
        """All namespaces of the server by name."""
        request = namespace_messages.ListNamespacesRequest()
        async for message in self._pages(lambda to: to.namespaces.ListNamespaces, request, "namespaces"):
            yield _convert.namespace_info(message)

    async def stats(self) -> _models.Stats:
        """Numbers about this namespace and the server."""
        request = admin_messages.GetStatsRequest(namespace=self.namespace)
        return _convert.stats(await self._connection.call(lambda to: to.admin.GetStats, request))

    async def _pages(self, method: Callable[[Channel], Any], request: Any, field: str) -> AsyncIterator[Any]:
        """The messages in a field of all pages. Asks for a page when the one before has been used up."""
        while True:
            response = await self._connection.call(method, request)
            for message in getattr(response, field):
                yield message
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token


def _filter_message(words: Any, choices: Mapping[str, Any]) -> types_messages.Filter:
    """The filter that a method's keywords make, after a check that it knows them all."""
    if unknown := choices.keys() - words.__optional_keys__:
        raise TypeError(f"unknown keywords: {', '.join(sorted(unknown))}")
    short = {field: choices[word] for word, field in _SHORT_FORMS.items() if word in choices}
    return _convert.filter_message(dataclasses.replace(choices.get("filter") or Filter(), **short))
