"""A client whose streams are scripted, and the events of an answer."""

from contextlib import contextmanager

from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client import AsyncClient, Client
from pagantic_common.domain.errors import NotFound


class ScriptedClient(AsyncClient):
    """Gives streams in turn, the last one again and again; a stream is its events, and the error in which it ends.

    A cancel comes after the execution has ended.
    """

    def __init__(self, *streams):
        super().__init__("127.0.0.1:1", timeout_s=60.0, patience_s=0)
        self.streams = list(streams)
        self.calls = []

    def _begin(self, request):
        self.calls.append("stream")
        self.request = request
        return self.open_next()

    def _follow(self, request_id, after_sequence, timeout_s):
        assert timeout_s <= 60
        self.calls.append(f"follow {request_id} after {after_sequence}")
        return self.open_next()

    async def open_next(self):
        for item in self.streams.pop(0) if len(self.streams) > 1 else self.streams[0]:
            if isinstance(item, Exception):
                raise item
            event = event_pb2.ExecutionEvent()
            event.CopyFrom(item)
            yield event

    async def cancel(self, request_id, *, timeout_s=None):
        assert timeout_s < 10, "a caller that leaves does not wait for a network that is away"
        self.calls.append(f"cancel {request_id}")
        raise NotFound("it has ended")


@contextmanager
def blocking(scripted):
    """Give the client for programs without asyncio around a scripted one."""
    with Client("127.0.0.1:1") as client:
        client._client = scripted
        yield client


def state(sequence):
    return event_pb2.ExecutionEvent(sequence=sequence, transition=event_pb2.LifecycleTransition())


def text(words, sequence):
    return event_pb2.ExecutionEvent(sequence=sequence, content_delta=event_pb2.ContentDelta(text=words))


def thought(words, sequence):
    return event_pb2.ExecutionEvent(sequence=sequence, reasoning_delta=event_pb2.ReasoningDelta(text=words))


def piece(arguments, sequence, call_id="", name=""):
    delta = {"id": call_id, "name": name, "arguments_json": arguments}
    return event_pb2.ExecutionEvent(sequence=sequence, tool_call_delta=delta)


def began(call_id, sequence):
    start = event_pb2.ToolStart(tool_name="clock", tool_call_id=call_id)
    return event_pb2.ExecutionEvent(sequence=sequence, tool_start=start)


def begun(sequence):
    return event_pb2.ExecutionEvent(sequence=sequence, inference_start=event_pb2.InferenceStart())


def ended(sequence):
    return event_pb2.ExecutionEvent(sequence=sequence, inference_end=event_pb2.InferenceEnd())


def resumed(sequence):
    return event_pb2.ExecutionEvent(sequence=sequence, resumed=event_pb2.Resumed())


def discarded(sequence):
    attempt = event_pb2.AttemptDiscarded(attempt=1, reason="not valid")
    return event_pb2.ExecutionEvent(sequence=sequence, attempt_discarded=attempt)


def end(sequence, content, **fields):
    response = execution_pb2.SystemResponse(content=content, **fields)
    return event_pb2.ExecutionEvent(sequence=sequence, completed=event_pb2.Completed(response=response))
