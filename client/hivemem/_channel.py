"""The connection to a server: the one module that speaks gRPC.

It turns every status into an exception of this library, gives every call a deadline, tries again what may be
tried again, and notices streams that have gone silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

import grpc
import grpc.aio

from hivemem._backoff import Backoff
from hivemem._convert import status_error
from hivemem._errors import Closed, ConnectionFailed, DeadlineExceeded, HivememError, Unavailable
from hivemem.v1.admin_service_pb2_grpc import AdminServiceStub
from hivemem.v1.episode_service_pb2_grpc import EpisodeServiceStub
from hivemem.v1.namespace_service_pb2_grpc import NamespaceServiceStub
from hivemem.v1.search_service_pb2_grpc import SearchServiceStub
from hivemem.v1.session_service_pb2_grpc import SessionServiceStub
from hivemem.v1.thread_service_pb2_grpc import ThreadServiceStub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from hivemem.v1.admin_service_pb2_grpc import AdminServiceAsyncStub
    from hivemem.v1.episode_service_pb2 import (
        AppendEpisodeStreamRequest,
        AppendEpisodeStreamResponse,
        SubscribeEpisodesRequest,
        SubscribeEpisodesResponse,
    )
    from hivemem.v1.episode_service_pb2_grpc import EpisodeServiceAsyncStub
    from hivemem.v1.namespace_service_pb2_grpc import NamespaceServiceAsyncStub
    from hivemem.v1.search_service_pb2_grpc import SearchServiceAsyncStub
    from hivemem.v1.session_service_pb2_grpc import SessionServiceAsyncStub
    from hivemem.v1.thread_service_pb2_grpc import ThreadServiceAsyncStub

ChannelCredentials = grpc.ChannelCredentials
Request = TypeVar("Request")
Response = TypeVar("Response")
UnaryMethod: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[Request, Response]"
StreamCall: TypeAlias = "grpc.aio.UnaryStreamCall[Any, Response] | grpc.aio.StreamStreamCall[Any, Response]"

_CLOSED = "this client is closed: use it inside of `async with`"
DEFAULT_PORT = 7400
# Proxies allow about 100 streams a connection, and let further calls wait without a word. What is left is for
# unary calls.
_STREAMS_A_CHANNEL = 80
_MEBIBYTE = 1 << 20
_OPTIONS: list[tuple[str, int]] = [
    # The contract allows messages of 8 MiB; the margin is for what surrounds them.
    ("grpc.max_receive_message_length", 9 * _MEBIBYTE),
    ("grpc.max_send_message_length", 9 * _MEBIBYTE),
    # A connection that died without a word is noticed after 40 s, also if nothing is sent on it.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # With the probe on, a subscriber that does not read buffers without bound.
    ("grpc.http2.bdp_probe", 0),
    # A server that comes back is found within two seconds, not two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Clients of one process do not share connections: closing one leaves the others alone.
    ("grpc.use_local_subchannel_pool", 1),
]


class Connection:
    """What a client needs of a server. Connects at the first call."""

    def __init__(self, address: str, *, timeout: float, credentials: ChannelCredentials | None) -> None:
        self.address = _with_port(address)
        self.timeout = timeout
        self._credentials = credentials
        self._channels: list[Channel] = []
        self._condemned: set[asyncio.Task[None]] = set()
        self._closed = False

    async def call(
        self,
        method: Callable[[Channel], UnaryMethod[Request, Response]],
        request: Request,
        timeout: float | None = None,
    ) -> Response:
        """Makes an idempotent call, again and again until it is answered or the timeout is over.

        Raises the last error then. Do not use it for calls that may not be carried out twice. `method` picks it from
        a channel, since another try may need another channel.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.timeout if timeout is None else timeout)
        backoff = Backoff(longest=2.0)
        while True:
            try:
                return await self._attempt(method, request, deadline - loop.time())
            except Unavailable as error:
                pause = backoff.next(error.retry_delay)
                if loop.time() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)

    async def _attempt(
        self, method: Callable[[Channel], UnaryMethod[Request, Response]], request: Request, timeout: float
    ) -> Response:
        self._check_open()
        channel = self._channels[0] if self._channels else self._add_channel()
        try:
            return await method(channel)(request, timeout=max(timeout, 0.0))
        except grpc.aio.AioRpcError as error:
            raise self.error(error) from None
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            # Closing a channel cancels its calls, but not the tasks that wait for them.
            raise self.cancelled() from None

    def subscribe(self, request: SubscribeEpisodesRequest) -> Stream[SubscribeEpisodesResponse]:
        """Opens a stream of SubscribeEpisodes. It is up to the caller to cancel it."""
        self._check_open()
        channel = self._channel_with_room()
        return Stream(channel.episodes.SubscribeEpisodes(request), self, channel)

    def append(self, requests: AsyncIterator[AppendEpisodeStreamRequest]) -> Stream[AppendEpisodeStreamResponse]:
        """Opens a stream of AppendEpisodeStream that sends the requests as they come and as the server takes them.

        The server is told that there will be no more when they end. It is up to the caller to cancel the stream,
        and to end the requests: gRPC waits for the next one also after the stream has ended.
        """
        self._check_open()
        channel = self._channel_with_room()
        return Stream(channel.episodes.AppendEpisodeStream(requests), self, channel)

    async def close(self) -> None:
        """Ends all calls and closes all connections. Closing twice is harmless."""
        self._closed = True
        while self._channels:
            await self._channels.pop().grpc_channel.close()
        await asyncio.gather(*self._condemned)

    def condemn(self, channel: Channel) -> None:
        """Gives a channel up whose connection seems to be dead; what comes next gets another one."""
        if channel in self._channels:
            self._channels.remove(channel)
            closing = asyncio.create_task(channel.grpc_channel.close(), name="hivemem closing")
            self._condemned.add(closing)
            closing.add_done_callback(self._condemned.discard)

    def error(self, error: grpc.aio.AioRpcError) -> HivememError:
        """The exception for a status."""
        if (details := _status_details(error)) is not None:
            return status_error(error.code().name, error.details() or "", details)
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return self.unreachable(error.details() or "")
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(f"hivemem at {self.address} did not answer in time")
        return status_error(error.code().name, f"{self.address} answered {error.code().name}: {error.details()}", None)

    def cancelled(self) -> HivememError:
        """The exception for a call that ended because its channel was closed here."""
        if self._closed:
            return Closed(_CLOSED)
        return self.unreachable("the connection was given up")

    def unreachable(self, details: str) -> ConnectionFailed:
        """The exception for a server that is not there, or not there any more."""
        return ConnectionFailed(
            f"cannot reach hivemem at {self.address}: start it with `hivemem serve`, or name another address",
            metadata={"address": self.address, "details": details},
        )

    def _channel_with_room(self) -> Channel:
        for channel in self._channels:
            if channel.streams < _STREAMS_A_CHANNEL:
                return channel
        return self._add_channel()

    def _add_channel(self) -> Channel:
        self._channels.append(Channel(self._open_grpc_channel()))
        return self._channels[-1]

    def _open_grpc_channel(self) -> grpc.aio.Channel:
        options = [*_OPTIONS, ("grpc.enable_http_proxy", int(not _is_local(self.address)))]
        if self._credentials is None:
            return grpc.aio.insecure_channel(self.address, options=options)
        return grpc.aio.secure_channel(self.address, self._credentials, options=options)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(_CLOSED)


class Channel:
    """One connection with the methods of the contract on it, and the streams that it carries."""

    def __init__(self, grpc_channel: grpc.aio.Channel) -> None:
        self.grpc_channel = grpc_channel
        self._calls: set[StreamCall[Any]] = set()

    @property
    def streams(self) -> int:
        """How many streams it carries."""
        return len(self._calls)

    def carry(self, call: StreamCall[Any]) -> None:
        """Counts a stream until it ends, of which gRPC may tell twice."""
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    @cached_property
    def episodes(self) -> EpisodeServiceAsyncStub:
        """Methods of EpisodeService."""
        return EpisodeServiceStub(self.grpc_channel)

    @cached_property
    def sessions(self) -> SessionServiceAsyncStub:
        """Methods of SessionService."""
        return SessionServiceStub(self.grpc_channel)

    @cached_property
    def searches(self) -> SearchServiceAsyncStub:
        """Methods of SearchService."""
        return SearchServiceStub(self.grpc_channel)

    @cached_property
    def threads(self) -> ThreadServiceAsyncStub:
        """Methods of ThreadService."""
        return ThreadServiceStub(self.grpc_channel)

    @cached_property
    def namespaces(self) -> NamespaceServiceAsyncStub:
        """Methods of NamespaceService."""
        return NamespaceServiceStub(self.grpc_channel)

    @cached_property
    def admin(self) -> AdminServiceAsyncStub:
        """Methods of AdminService."""
        return AdminServiceStub(self.grpc_channel)


class Stream(Generic[Response]):
    """One stream of messages from the server.

    It holds no more than one message. `silence` is how long a message may be waited for, in seconds, before the
    stream is taken for dead; the time in which nobody waits does not count, also between two reads of which the first
    was cancelled.
    """

    def __init__(self, call: StreamCall[Response], connection: Connection, channel: Channel) -> None:
        channel.carry(call)
        self.silence = connection.timeout
        self._call = call
        self._connection = connection
        self._channel = channel
        self._reading: asyncio.Task[Response | HivememError | None] | None = None
        self._waited = 0.0  # for the message that is being read
        self._ended_because: HivememError | None = None
        self._first_status: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note_status)

    async def read(self) -> Response | None:
        """The next message; None after the last one.

        A cancelled read loses nothing: the message goes to the next one. (The read below it goes on, since
        cancelling it would end the call, and leaks memory in grpc.)
        """
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="hivemem stream")
            self._waited = 0.0
        reading = self._reading
        with self._waiting():
            await asyncio.wait({reading})
        self._reading = None
        return _message(reading.result())

    async def receive(self) -> Response | None:
        """As `read`, at less cost: being cancelled ends the stream."""
        self._waited = 0.0
        with self._waiting():
            return _message(await self._read())

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Takes the stream for dead when too much time has been spent in here for one message."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        timer = loop.call_later(self.silence - self._waited, self._take_for_dead)
        try:
            yield
        finally:
            timer.cancel()
            self._waited += loop.time() - since

    async def _read(self) -> Response | HivememError | None:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            return self._connection.error(self._first_status or error)
        except asyncio.CancelledError:
            if self._ended_because is None and _is_being_cancelled():
                raise
            return self._ended_because or self._connection.cancelled()
        return None if message is grpc.aio.EOF else cast("Response", message)

    def _note_status(self, call: StreamCall[Response]) -> None:
        """Keeps what the server said in the end.

        gRPC puts INTERNAL in its place when a request was still being sent at that moment, before any task gets to
        see it. A read of a call that has ended does not wait, so that one step of it tells.
        """
        reading = call.read()
        try:
            reading.send(None)
        except grpc.aio.AioRpcError as error:
            self._first_status = self._first_status or error
        except (StopIteration, asyncio.CancelledError):
            pass
        finally:
            reading.close()

    def _take_for_dead(self) -> None:
        self.give_up(f"no message for {self.silence:g} s")
        self._connection.condemn(self._channel)

    def give_up(self, details: str) -> None:
        """Ends the call at once; a read that is under way raises ConnectionFailed with these details."""
        self._end(self._connection.unreachable(details))

    def cancel(self) -> None:
        """Ends the call at once; a read that is under way raises Closed."""
        self._end(Closed("this stream is closed"))

    async def aclose(self) -> None:
        """Ends the call at once, and waits for a read that is under way."""
        self.cancel()
        if self._reading is not None:
            await asyncio.wait({self._reading})

    def _end(self, reason: HivememError) -> None:
        self._ended_because = self._ended_because or reason
        with contextlib.suppress(RuntimeError):  # the event loop may be closed by now
            self._call.cancel()


def _message(outcome: Response | HivememError | None) -> Response | None:
    if isinstance(outcome, HivememError):
        raise outcome
    return outcome


def _with_port(address: str) -> str:
    return address if ":" in address else f"{address}:{DEFAULT_PORT}"


def _is_local(address: str) -> bool:
    """Whether an address is on this machine, where no HTTP proxy has to be asked."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _status_details(error: grpc.aio.AioRpcError) -> bytes | None:
    """The google.rpc.Status that came with a status."""
    trailers = error.trailing_metadata()
    found = trailers.get_all("grpc-status-details-bin") if trailers is not None else []
    return next((value for value in found if isinstance(value, bytes)), None)
