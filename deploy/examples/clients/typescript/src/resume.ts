import * as grpc from "@grpc/grpc-js";
import { setTimeout as sleep } from "node:timers/promises";
import { Answer } from "./answer.js";
import type { Connection } from "./connection.js";
import { isServiceError } from "./failure.js";
import type { ExecutionEvent__Output } from "./gen/pagantic/orchestrator/v1/ExecutionEvent.js";
import type { SystemRequest } from "./gen/pagantic/orchestrator/v1/SystemRequest.js";
import type { SystemResponse__Output } from "./gen/pagantic/orchestrator/v1/SystemResponse.js";
import { note } from "./terminal.js";

const FIRST_WAIT_MS = 100;
const LONGEST_WAIT_MS = 2000;

/**
 * Stream an answer over a connection that is dropped after some pieces of text. The request is in the background, so
 * that it goes on when its caller is gone; who comes back follows it from the last event.
 */
export async function readThroughLosses(
  connection: Connection,
  request: SystemRequest,
  piecesBeforeDrop: number,
): Promise<SystemResponse__Output> {
  const endsAt = Date.now() + connection.timeoutMs;
  const answer = new Answer();
  let pieces = 0;
  let waitMs = FIRST_WAIT_MS;
  while (!answer.response) {
    const events = beginOrFollow(connection, request, answer.sequence, endsAt - Date.now());
    let isDropped = false;
    try {
      for await (const event of events as AsyncIterable<ExecutionEvent__Output>) {
        answer.take(event);
        waitMs = FIRST_WAIT_MS;
        if (event.contentDelta && ++pieces === piecesBeforeDrop) {
          note(`\ndropped: after event ${answer.sequence}`);
          events.cancel();
          connection.drop();
          isDropped = true;
          break;
        }
      }
      if (!answer.response && !isDropped) throw makeEndError();
    } catch (error) {
      const isLost = isServiceError(error) && error.code === grpc.status.UNAVAILABLE;
      if (!isLost || Date.now() + waitMs > endsAt) throw error;
      note(`\nlost: after event ${answer.sequence}`);
      await sleep(waitMs);
      waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS);
    }
    answer.rewind();
  }
  return answer.response;
}

/** Return the error of a stream that ends without a status, which counts as a lost connection. */
export function makeEndError(): grpc.ServiceError {
  const details = "the stream ended before its execution";
  const metadata = new grpc.Metadata();
  return Object.assign(new Error(details), { code: grpc.status.UNAVAILABLE, details, metadata });
}

/** Return the stream of a request, which is begun where no event of it has arrived; the same id begins it once. */
function beginOrFollow(connection: Connection, request: SystemRequest, sequence: number, timeoutMs: number) {
  const options = connection.options(timeoutMs);
  if (!sequence) return connection.stub.ExecuteStream(request, connection.metadata, options);
  note(`follows: event ${sequence}`);
  const following = { requestId: request.requestId, afterSequence: sequence };
  return connection.stub.FollowExecution(following, connection.metadata, options);
}
