import * as grpc from "@grpc/grpc-js";
import { ErrorInfo, RetryInfo, Status, SystemError } from "./contract.js";
import type { SystemError__Output } from "./gen/pagantic/common/v1/SystemError.js";
import { note } from "./terminal.js";

// Exit codes are those of the command `pagantic`.
export const EXIT_USAGE = 2;
const EXIT_REQUEST = 3;
const EXIT_OF_CODE: Record<string, number> = {
  INFERENCE_OUTPUT_TRUNCATED: 6,
  CONFIG_SOURCE_UNAVAILABLE: 7,
  QUOTA_RATE: 7,
  QUOTA_CONCURRENCY: 7,
};
const EXIT_OF_CATEGORY: Record<string, number> = {
  INFERENCE_FAILURE: 4,
  TOOL_FAILURE: 5,
  CONSTRAINT_FAILURE: 6,
  VALIDATION_FAILURE: 6,
  ORCHESTRATION_FAILURE: 7,
  CONFIGURATION_FAILURE: EXIT_REQUEST,
  CANCELLATION: 8,
  ACCESS_FAILURE: EXIT_REQUEST,
};
const EXIT_OF_STATUS: Record<string, number> = {
  UNAVAILABLE: 7,
  RESOURCE_EXHAUSTED: 7,
  ABORTED: 7,
  DEADLINE_EXCEEDED: 8,
  CANCELLED: 8,
  INTERNAL: 1,
  UNKNOWN: 1,
};

/** A request that failed: a status with its details, or the error of a response. */
export class Failure extends Error {
  override name = "";
  status = "";
  described?: SystemError__Output;
  retryAfterSeconds?: number;

  /** Decode the details of a status: ErrorInfo names the failure, SystemError describes it. */
  static ofStatus(error: grpc.ServiceError): Failure {
    const failure = new Failure(error.details);
    failure.name = failure.status = grpc.status[error.code];
    const [encoded] = error.metadata?.get("grpc-status-details-bin") ?? [];
    const details = encoded instanceof Buffer ? Status.deserialize(encoded).details : [];
    for (const { type_url, value } of details) {
      switch (type_url.split("/").pop()) {
        case "google.rpc.ErrorInfo":
          failure.name = ErrorInfo.deserialize(value).reason;
          break;
        case "pagantic.common.v1.SystemError":
          failure.described = SystemError.deserialize(value);
          failure.message = failure.described.message;
          break;
        case "google.rpc.RetryInfo": {
          const delay = RetryInfo.deserialize(value).retryDelay;
          failure.retryAfterSeconds = Number(delay?.seconds ?? 0) + (delay?.nanos ?? 0) / 1e9;
        }
      }
    }
    return failure;
  }

  /** Read the error of a response. */
  static ofResponse(described: SystemError__Output): Failure {
    const failure = new Failure(described.message);
    failure.name = described.code.replace("ERROR_CODE_", "");
    failure.described = described;
    return failure;
  }

  /** The part of the system in which it belongs; empty without one. */
  get category(): string {
    const name = this.described?.category ?? "ERROR_CATEGORY_UNSPECIFIED";
    return name === "ERROR_CATEGORY_UNSPECIFIED" ? "" : name.replace("ERROR_CATEGORY_", "");
  }

  get exitCode(): number {
    return (
      EXIT_OF_CODE[this.name] ?? EXIT_OF_CATEGORY[this.category] ?? EXIT_OF_STATUS[this.status] ?? EXIT_REQUEST
    );
  }

  /** Print what failed, where it belongs, and what to do next. */
  show(): void {
    note(`error: ${this.name}`);
    note(`from: ${this.status ? `status ${this.status}` : "response"}`);
    if (this.category) note(`category: ${this.category}`);
    note(`message: ${this.message}`);
    if (this.described) note(`retryable: ${this.described.retryable ? "yes" : "no"}`);
    if (this.retryAfterSeconds !== undefined) note(`retry after: ${this.retryAfterSeconds.toFixed(1)} s`);
  }
}

/** Tell whether gRPC raised this. */
export function isServiceError(error: unknown): error is grpc.ServiceError {
  return error instanceof Error && "code" in error && typeof error.code === "number" && "details" in error;
}
