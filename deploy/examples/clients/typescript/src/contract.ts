// The contract of the services, read from the proto files; their types are in gen/.
import * as grpc from "@grpc/grpc-js";
import * as loader from "@grpc/proto-loader";
import { fileURLToPath } from "node:url";
import type { ProtoGrpcType as DetailsTypes } from "./gen/error_details.js";
import type { ProtoGrpcType } from "./gen/orchestrator_service.js";
import type { ProtoGrpcType as StatusTypes } from "./gen/status.js";

const folders = ["../../../../../proto", "../node_modules/google-proto-files"];
const definition = loader.loadSync(
  ["pagantic/orchestrator/v1/orchestrator_service.proto", "google/rpc/status.proto", "google/rpc/error_details.proto"],
  {
    includeDirs: folders.map((folder) => fileURLToPath(new URL(folder, import.meta.url))),
    enums: String,
    longs: String,
    defaults: true,
    oneofs: true,
  },
);
const loaded = grpc.loadPackageDefinition(definition) as unknown as ProtoGrpcType & DetailsTypes & StatusTypes;

export const { OrchestratorService } = loaded.pagantic.orchestrator.v1;
export const { SystemError } = loaded.pagantic.common.v1;
export const { Status, ErrorInfo, RetryInfo } = loaded.google.rpc;
