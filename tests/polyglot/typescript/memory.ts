// What a TypeScript program needs beside the generated stubs: promises, deadlines, and errors by their reason.

import { credentials, Metadata, type CallOptions, type ClientReadableStream, type ServiceError } from "@grpc/grpc-js";
import { ErrorInfo } from "nice-grpc-error-details";
import { Status } from "nice-grpc-error-details/lib/proto/google/rpc/status.js";

import {
  EpisodeServiceClient,
  type SubscribeEpisodesRequest,
  type SubscribeEpisodesResponse,
} from "./gen/hivemem/v1/episode_service.js";
import { ErrorReason } from "./gen/hivemem/v1/error_reason.js";
import { SearchServiceClient } from "./gen/hivemem/v1/search_service.js";
import { SessionServiceClient } from "./gen/hivemem/v1/session_service.js";
import { ThreadServiceClient } from "./gen/hivemem/v1/thread_service.js";

const CALL_MS = 10_000;
const STREAM_MS = 20_000;
const MESSAGE_BYTES = 8 * 1024 * 1024;

type Done<Response> = (error: ServiceError | null, response: Response) => void;
type Unary<Request, Response> = (
  request: Request,
  metadata: Metadata,
  options: Partial<CallOptions>,
  done: Done<Response>,
) => unknown;

/** Sends one request, with a deadline. */
export type Call<Request, Response> = (request: Request) => Promise<Response>;

/** The services of one server. */
export class Memory {
  readonly #sessions: SessionServiceClient;
  readonly #episodes: EpisodeServiceClient;
  readonly #search: SearchServiceClient;
  readonly #threads: ThreadServiceClient;

  readonly createSession;
  readonly appendEpisodes;
  readonly searchEpisodes;
  readonly listThreads;

  constructor(address: string) {
    const options = { "grpc.max_receive_message_length": MESSAGE_BYTES, "grpc.enable_http_proxy": 0 };
    const plain = credentials.createInsecure();
    this.#sessions = new SessionServiceClient(address, plain, options);
    this.#episodes = new EpisodeServiceClient(address, plain, options);
    this.#search = new SearchServiceClient(address, plain, options);
    this.#threads = new ThreadServiceClient(address, plain, options);
    this.createSession = promised(this.#sessions, this.#sessions.createSession);
    this.appendEpisodes = promised(this.#episodes, this.#episodes.appendEpisodes);
    this.searchEpisodes = promised(this.#search, this.#search.searchEpisodes);
    this.listThreads = promised(this.#threads, this.#threads.listThreads);
  }

  /** Messages of a subscription; leaving the loop ends the call. */
  async *subscribe(request: SubscribeEpisodesRequest): AsyncGenerator<NonNullable<SubscribeEpisodesResponse["event"]>> {
    const stream: ClientReadableStream<SubscribeEpisodesResponse> = this.#episodes.subscribeEpisodes(request, {
      deadline: Date.now() + STREAM_MS,
    });
    try {
      for await (const response of stream as AsyncIterable<SubscribeEpisodesResponse>) {
        if (response.event !== undefined) yield response.event; // unset: a kind that these stubs do not know
      }
    } finally {
      stream.on("error", () => undefined); // what ending the call says is no news
      stream.cancel();
    }
  }

  close(): void {
    for (const client of [this.#sessions, this.#episodes, this.#search, this.#threads]) client.close();
  }
}

function promised<Request, Response>(client: object, method: Unary<Request, Response>): Call<Request, Response> {
  return (request) =>
    new Promise((resolve, reject) => {
      method.call(client, request, new Metadata(), { deadline: Date.now() + CALL_MS }, (error, response) =>
        error ? reject(error) : resolve(response),
      );
    });
}

/** Why a call failed; UNSPECIFIED if the server is newer or the status is gRPC's own. */
export function reasonOf(error: unknown): ErrorReason {
  const name = detail(error, ErrorInfo)?.reason ?? "";
  return ErrorReason[name as keyof typeof ErrorReason] ?? ErrorReason.UNSPECIFIED;
}

/** One of google.rpc's details of an error. */
export function detail<Detail>(error: unknown, type: DetailType<Detail>): Detail | undefined {
  const [trailer] = (error as ServiceError).metadata.get("grpc-status-details-bin");
  if (!(trailer instanceof Buffer)) return undefined;
  const packed = Status.decode(trailer).details.find((any) => any.typeUrl.endsWith(`/${type.$type}`));
  return packed && type.decode(packed.value);
}

interface DetailType<Detail> {
  readonly $type: string;
  decode(bytes: Uint8Array): Detail;
}
