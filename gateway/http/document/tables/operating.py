"""The operations of a deployment's state: sessions, collections, tools, replicas and pulled models."""

from __future__ import annotations

from gateway.http.document.operations import Operation, Operations, Parameter, Tag
from gateway.http.document.shapes.serving import Done, ModelsOfMachine
from gateway.http.native.sessions import MAX_MESSAGES, MAX_PAGE
from pagantic.context.v1 import collection_pb2, context_service_pb2, file_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import session_pb2

_SESSION = "/v1/sessions/{session_id}"
_COLLECTION = "/v1/collections/{collection}"
_POSITION = {"type": "integer", "minimum": 0}

OPERATING_OPERATIONS: Operations = {
    ("GET", "/v1/sessions"): Operation(
        Tag.NATIVE,
        "listSessions",
        "List stored conversations without their messages, the one used last first.",
        answer=pb.ListSessionsResponse.DESCRIPTOR,
        parameters=(
            Parameter("page_size", {"type": "integer", "minimum": 0, "maximum": MAX_PAGE}, "Most sessions; 0 is 50."),
            Parameter("page_token", {"type": "string"}, "The `next_page_token` of the page before."),
            Parameter("state_key", {"type": "string"}, "Key of the value that each session is listed with."),
        ),
    ),
    ("GET", _SESSION): Operation(
        Tag.NATIVE,
        "getSession",
        "Get a stored conversation with its newest messages.",
        answer=session_pb2.Session.DESCRIPTOR,
        parameters=(
            Parameter("max_messages", {**_POSITION, "maximum": MAX_MESSAGES}, "Most messages; 0 is 1000."),
            Parameter("before_position", _POSITION, "Only messages before this position: `first_position` of a page."),
        ),
    ),
    ("PATCH", _SESSION): Operation(
        Tag.NATIVE,
        "updateSession",
        "Set and remove values of a conversation.",
        pb.UpdateSessionRequest.DESCRIPTOR,
        session_pb2.Session.DESCRIPTOR,
    ),
    ("DELETE", _SESSION): Operation(
        Tag.NATIVE, "deleteSession", "Delete a conversation, and what its executions keep of it.", answer=Done
    ),
    ("GET", "/v1/collections"): Operation(
        Tag.NATIVE,
        "listCollections",
        "List collections by name.",
        answer=context_service_pb2.ListCollectionsResponse.DESCRIPTOR,
    ),
    ("POST", "/v1/collections"): Operation(
        Tag.NATIVE,
        "createCollection",
        "Make an empty collection.",
        context_service_pb2.CreateCollectionRequest.DESCRIPTOR,
        collection_pb2.Collection.DESCRIPTOR,
    ),
    ("DELETE", _COLLECTION): Operation(
        Tag.NATIVE, "deleteCollection", "Delete a collection with its documents.", answer=Done
    ),
    ("POST", f"{_COLLECTION}/files"): Operation(
        Tag.NATIVE,
        "ingestFile",
        "Store a file as a document; a file that cannot be read has its error in the answer.",
        answer=file_pb2.FileResult.DESCRIPTOR,
        parameters=(
            Parameter("source", {"type": "string", "minLength": 1}, "Source of the document: the file's name."),
        ),
        takes_file=True,
    ),
    ("POST", f"{_COLLECTION}/search"): Operation(
        Tag.NATIVE,
        "searchCollection",
        "Find the chunks that fit a query best.",
        context_service_pb2.RetrieveRequest.DESCRIPTOR,
        context_service_pb2.RetrieveResponse.DESCRIPTOR,
    ),
    ("GET", "/v1/tools"): Operation(
        Tag.NATIVE,
        "listTools",
        "List the tools that the caller's requests may name.",
        answer=pb.ListToolsResponse.DESCRIPTOR,
    ),
    ("GET", "/v1/replicas"): Operation(
        Tag.NATIVE,
        "listReplicas",
        "List the replicas that serve models, with their loads. Needs the scope admin.",
        answer=pb.ListReplicasResponse.DESCRIPTOR,
    ),
    ("POST", "/v1/models/{name}/load"): Operation(
        Tag.NATIVE,
        "loadModel",
        "Load a model in every replica that serves it. Needs the scope admin.",
        answer=pb.LoadModelResponse.DESCRIPTOR,
    ),
    ("POST", "/v1/models/{name}/unload"): Operation(
        Tag.NATIVE,
        "unloadModel",
        "Unload a model in every replica that serves it. Needs the scope admin.",
        answer=pb.UnloadModelResponse.DESCRIPTOR,
    ),
    ("GET", "/v1/pulled-models"): Operation(
        Tag.NATIVE,
        "listPulledModels",
        "List the models that were pulled on the gateway's machine, and those of the catalog. Needs the scope admin.",
        answer=ModelsOfMachine,
    ),
}
