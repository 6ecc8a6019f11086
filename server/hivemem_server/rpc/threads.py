"""ThreadService."""

from __future__ import annotations

from hivemem.v1 import thread_service_pb2 as pb

from hivemem_server.domain.filters import ThreadFilter
from hivemem_server.domain.ports import NamespaceStore, ThreadStore
from hivemem_server.domain.validation import Violations, check_thread_filter, page_size
from hivemem_server.domain.values import Thread, ThreadOrder, ThreadState
from hivemem_server.rpc import convert
from hivemem_server.rpc.namespaces import namespace_name
from hivemem_server.rpc.pages import fitting, page_key, page_token


class ThreadServicer:
    """Serves ThreadService."""

    def __init__(self, namespaces: NamespaceStore, threads: ThreadStore) -> None:
        self._namespaces = namespaces
        self._threads = threads

    async def list_threads(self, request: pb.ListThreadsRequest) -> pb.ListThreadsResponse:
        """Lists threads."""
        name = namespace_name(request.namespace)
        found = Violations()
        wanted = _filter_from(found, request.filter)
        order = _order_from(found, request.order)
        check_thread_filter(found, wanted)
        found.done()
        after = [int(part) for part in page_key(request)]
        size = page_size(request.page_size)
        threads = await self._threads.page(await self._namespaces.resolve(name), wanted, order, after, size + 1)
        shown = fitting([message(thread) for _, thread in threads[:size]])
        more = list(threads[len(shown) - 1][0]) if len(threads) > len(shown) else ()
        return pb.ListThreadsResponse(threads=shown, next_page_token=page_token(request, more))


def _order_from(found: Violations, given: int) -> ThreadOrder:
    if given and given not in set(ThreadOrder):
        found.add("order", "is not an order that this server knows")
        return ThreadOrder.OLDEST_FIRST
    return ThreadOrder(given or ThreadOrder.OLDEST_FIRST)


def _filter_from(found: Violations, given: pb.ThreadFilter) -> ThreadFilter:
    states = []
    for index, number in enumerate(given.states):
        if int(number) in set(ThreadState):
            states.append(ThreadState(number))
        else:
            found.add(f"filter.states[{index}]", "is not a state that this server knows")
    return ThreadFilter(
        states=tuple(dict.fromkeys(states)),
        session_ids=tuple(given.session_ids),
        user_ids=tuple(given.user_ids),
        agent_ids=tuple(given.agent_ids),
        claimed_by_agent_ids=tuple(given.claimed_by_agent_ids),
        any_tags=tuple(given.any_tags),
        plan_ids=tuple(given.plan_ids),
        min_age=convert.timedelta_from(found, "filter.min_age", given.min_age) if given.HasField("min_age") else None,
        max_age=convert.timedelta_from(found, "filter.max_age", given.max_age) if given.HasField("max_age") else None,
    )


def message(value: Thread) -> pb.Thread:
    """A thread as a message."""
    opened = value.opened
    made = pb.Thread(
        thread_id=opened.thread_id,
        text=opened.text,
        state=pb.ThreadState.ValueType(int(value.state)),
        priority=opened.priority,
        tags=opened.tags,
        plan_id=opened.plan_id,
        step=opened.step,
        session_id=value.session_id,
        user_id=value.user_id,
        agent_id=value.agent_id,
        episode_id=str(value.episode_id),
        position=value.position,
        open_time=convert.stamp(value.open_time),
        ended_by_agent_id=value.ended_by_agent_id,
        ended_by_episode_id=str(value.ended_by_episode_id or ""),
        superseded=value.superseded,
    )
    if value.claim:
        made.claim.CopyFrom(
            pb.Claim(
                agent_id=value.claim.agent_id,
                fence=value.claim.fence,
                lease_duration=convert.duration(value.claim.lease.total_seconds()),
                claim_time=convert.stamp(value.claim.claim_time),
                expire_time=convert.stamp(value.claim.expire_time),
            )
        )
    if value.end_time:
        made.end_time.CopyFrom(convert.stamp(value.end_time))
    return made
