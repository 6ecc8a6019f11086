// The main job through the generated stubs, against the server that HIVEMEM_ADDRESS names.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, test } from "node:test";

import { BadRequest, ErrorInfo } from "nice-grpc-error-details";

import { AppendEpisodesRequest, SubscribeEpisodesRequest } from "./gen/hivemem/v1/episode_service.js";
import { ErrorReason } from "./gen/hivemem/v1/error_reason.js";
import { SearchEpisodesRequest } from "./gen/hivemem/v1/search_service.js";
import { CreateSessionRequest } from "./gen/hivemem/v1/session_service.js";
import { ListThreadsRequest, ThreadState } from "./gen/hivemem/v1/thread_service.js";
import type { AttributeValue, DeepPartial, Episode, LogRecord, NewEpisode, StartPoint } from "./gen/hivemem/v1/types.js";
import { Memory, detail, reasonOf } from "./memory.js";

const BEYOND_NUMBER = 2n ** 53n + 1n;
const memory = new Memory(process.env["HIVEMEM_ADDRESS"] ?? "127.0.0.1:7400");
const limits = { timeout: 60_000 };

after(() => memory.close());

test("a session is made once and found again", limits, async () => {
  const request = CreateSessionRequest.create({ sessionId: randomUUID(), userId: "u-42", goal: "compare prices" });
  assert.equal((await memory.createSession(request)).created, true);
  const again = await memory.createSession(request);
  assert.equal(again.created, false);
  assert.equal(again.session?.goal, "compare prices");
});

test("an append answers with places in the order, and the same answer when it is sent again", limits, async () => {
  const request = AppendEpisodesRequest.create({
    sessionId: await newSession(),
    agentId: "researcher",
    expectation: { state: { $case: "noStream", value: {} } },
    episodes: [
      {
        episodeId: randomUUID(),
        summary: "Three of five rivals raised their prices in May",
        decisions: [{ text: "Leave out rivals without a price list" }],
        openThreads: [{ text: "Ask for the price list of the fourth", priority: 5 }],
      },
      { episodeId: randomUUID(), summary: "The fifth rival sells in bundles only" },
    ],
  });
  const first = await memory.appendEpisodes(request);
  const [one, two] = first.episodes;
  assert.ok(one && two);
  assert.equal(first.deduplicated, false);
  assert.deepEqual([one.revision, two.revision], [1n, 2n]);
  assert.equal(two.position, one.position + 1n);
  assert.equal(one.decisionIds.length, 1);
  assert.equal(one.threadIds.length, 1);

  const again = await memory.appendEpisodes(request);
  assert.deepEqual(again, { ...first, deduplicated: true });
});

test("whole numbers above 2^53, times and typed attributes come back as they were sent", limits, async () => {
  const sessionId = await newSession();
  const attributes: Record<string, AttributeValue> = {
    count: { kind: { $case: "intValue", value: BEYOND_NUMBER } },
    debt: { kind: { $case: "intValue", value: -BEYOND_NUMBER } },
    share: { kind: { $case: "doubleValue", value: 0.1 } },
    source: { kind: { $case: "stringValue", value: "«Preisliste» № 4 🐝" } },
    checked: { kind: { $case: "boolValue", value: false } },
  };
  const eventTime = { seconds: 1_750_000_000n, nanos: 123_456_000 };
  await append(sessionId, "researcher", { summary: "typed", turn: BEYOND_NUMBER, attributes, eventTime });

  const [episode] = await firstEpisodes(sessionId, 1);
  assert.ok(episode);
  assert.deepEqual(episode.attributes, attributes);
  assert.deepEqual(episode.eventTime, eventTime);
  assert.equal(episode.turn, BEYOND_NUMBER);
});

test("a subscription says where it starts, catches up, goes on live, and resumes by its cursor", limits, async () => {
  const sessionId = await newSession();
  await append(sessionId, "researcher", { summary: "one" }, { summary: "two" });

  const seen: string[] = [];
  const delivered: string[] = [];
  let cursor: Buffer = Buffer.alloc(0);
  for await (const message of memory.subscribe(following(sessionId))) {
    seen.push(message.$case);
    cursor = message.value.cursor;
    if (message.$case === "batch") delivered.push(...message.value.records.flatMap(episodeOf).map((one) => one.summary));
    if (message.$case === "caughtUp") await append(sessionId, "researcher", { summary: "three" });
    if (delivered.length === 3) break;
  }
  assert.deepEqual(delivered, ["one", "two", "three"]);
  assert.deepEqual(seen.slice(0, 3), ["started", "batch", "caughtUp"]);

  await append(sessionId, "writer", { summary: "four" });
  const [next] = await firstEpisodes(sessionId, 1, { point: { $case: "cursor", value: cursor } });
  assert.equal(next?.summary, "four");
});

test("a search finds over all agents, or over those that are asked for", limits, async () => {
  const sessionId = await newSession();
  await append(sessionId, "researcher", { summary: "The ferry to the island costs 40 euros" });
  await append(sessionId, "writer", { summary: "The ferry leaves at noon" });

  const found = async (agentIds: string[]) => {
    const query = { $case: "text", value: "ferry" } as const;
    const request = SearchEpisodesRequest.create({ query, filter: { sessionIds: [sessionId], agentIds }, limit: 5 });
    const { hits, headPosition } = await memory.searchEpisodes(request);
    assert.ok(hits.every((hit) => hit.episode && hit.episode.position <= headPosition));
    return hits.map((hit) => hit.episode?.agentId).sort();
  };
  assert.deepEqual(await found([]), ["researcher", "writer"]);
  assert.deepEqual(await found(["writer"]), ["writer"]);
});

test("open threads are listed until an episode resolves them", limits, async () => {
  const sessionId = await newSession();
  const opened = await append(sessionId, "researcher", {
    summary: "a plan",
    openThreads: [
      { threadId: `${sessionId}/1`, text: "first", planId: sessionId, step: 1 },
      { threadId: `${sessionId}/2`, text: "second", planId: sessionId, step: 2 },
    ],
  });
  await append(sessionId, "writer", { summary: "first is done", resolves: [{ threadId: `${sessionId}/1` }] });

  const request = ListThreadsRequest.create({ filter: { sessionIds: [sessionId], states: [ThreadState.OPEN] } });
  const { threads } = await memory.listThreads(request);
  assert.deepEqual(threads.map((thread) => [thread.text, thread.step, thread.position]), [["second", 2, opened[0]]]);
});

test("an error is known by its reason, with the ids of its message", limits, async () => {
  const error = await refused(append("never-made", "researcher", { summary: "lost" }));
  assert.equal(reasonOf(error), ErrorReason.SESSION_NOT_FOUND);
  const info = detail(error, ErrorInfo);
  assert.equal(info?.domain, "hivemem.dev");
  assert.equal(info?.metadata["session_id"], "never-made");
});

test("a request that breaks several rules is answered with all of them", limits, async () => {
  const error = await refused(append("no spaces please", "researcher", { summary: "" }));
  assert.equal(reasonOf(error), ErrorReason.INVALID_FIELD);
  const fields = detail(error, BadRequest)?.fieldViolations.map((violation) => violation.field);
  assert.deepEqual(fields, ["session_id", "episodes[0].summary"]);
});

async function newSession(): Promise<string> {
  const { session } = await memory.createSession(CreateSessionRequest.create({ sessionId: randomUUID() }));
  assert.ok(session);
  return session.sessionId;
}

async function append(sessionId: string, agentId: string, ...given: DeepPartial<NewEpisode>[]): Promise<bigint[]> {
  const episodes = given.map((episode) => ({ episodeId: randomUUID(), ...episode }));
  const stored = await memory.appendEpisodes(AppendEpisodesRequest.fromPartial({ sessionId, agentId, episodes }));
  return stored.episodes.map((episode) => episode.position);
}

function following(sessionId: string, start?: StartPoint): SubscribeEpisodesRequest {
  return SubscribeEpisodesRequest.fromPartial({ filter: { sessionIds: [sessionId] }, start });
}

async function firstEpisodes(sessionId: string, count: number, start?: StartPoint): Promise<Episode[]> {
  const episodes: Episode[] = [];
  for await (const message of memory.subscribe(following(sessionId, start))) {
    if (message.$case !== "batch") continue;
    episodes.push(...message.value.records.flatMap(episodeOf));
    if (episodes.length >= count) break;
  }
  return episodes;
}

function episodeOf({ record }: LogRecord): Episode[] {
  return record?.$case === "episode" ? [record.value] : [];
}

async function refused(call: Promise<unknown>): Promise<unknown> {
  try {
    await call;
  } catch (error) {
    return error;
  }
  return assert.fail("the call was not refused");
}
