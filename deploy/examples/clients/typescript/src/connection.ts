import * as grpc from "@grpc/grpc-js";
import { readFileSync } from "node:fs";
import { OrchestratorService } from "./contract.js";
import type { OrchestratorServiceClient } from "./gen/pagantic/orchestrator/v1/OrchestratorService.js";

type Unary<Request, Response> = (
  request: Request,
  metadata: grpc.Metadata,
  options: grpc.CallOptions,
  callback: grpc.requestCallback<Response>,
) => grpc.ClientUnaryCall;

/** The channel to an orchestrator, its stub, and what each call carries. */
export class Connection {
  readonly timeoutMs = 1000 * Number(process.env.PAGANTIC_TIMEOUT_S || "120");
  readonly metadata = new grpc.Metadata();
  stub: OrchestratorServiceClient;
  private readonly target: string;
  private readonly credentials: grpc.ChannelCredentials;

  constructor() {
    const address = process.env.PAGANTIC_ADDRESS || "localhost:50051";
    if (/^(.*:\/\/)?(:\d*)?\/?$/.test(address)) {
      throw new Error("PAGANTIC_ADDRESS has no host: call host:port or https://host:port");
    }
    const { protocol, hostname, port } = new URL(address.includes("://") ? address : `http://${address}`);
    const key = (process.env.PAGANTIC_API_KEY ?? "").trim();
    if (key) this.metadata.set("authorization", `Bearer ${key}`);
    if (key && protocol !== "https:" && !/^(localhost|127\.[\d.]+|\[::1\])$/.test(hostname)) {
      throw new Error("the API key would travel in plain text: call https://host:port");
    }
    this.target = `${hostname}:${port || (protocol === "https:" ? 443 : 80)}`;
    const file = process.env.PAGANTIC_TLS_CA_FILE;
    this.credentials =
      protocol === "https:"
        ? grpc.credentials.createSsl(file ? readFileSync(file) : null)
        : grpc.credentials.createInsecure();
    this.stub = this.open();
  }

  /** Close the connection, and open another one. What runs on it has to be cancelled before: gRPC waits for it. */
  drop(): void {
    this.stub.close();
    this.stub = this.open();
  }

  /** Return the deadline of a call. */
  options(timeoutMs = this.timeoutMs): grpc.CallOptions {
    return { deadline: Date.now() + timeoutMs };
  }

  /** Make a call that has one response. */
  call<Request, Response>(method: Unary<Request, Response>, request: Request): Promise<Response> {
    return new Promise((resolve, reject) =>
      method.call(this.stub, request, this.metadata, this.options(), (error, response) =>
        error ? reject(error) : resolve(response!),
      ),
    );
  }

  private open(): OrchestratorServiceClient {
    return new OrchestratorService(this.target, this.credentials);
  }
}
