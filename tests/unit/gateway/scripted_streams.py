"""A client whose streams are scripted, and the events of an answer."""

from pagantic.orchestrator.v1 import event_pb2, execution_pb2


class ScriptedStreams:
    """Gives streams in turn, the last one again and again; a stream is its events, and the error in which it ends."""

    def __init__(self, *streams):
        self.streams = list(streams)
        self.calls = []

    def stream(self, request):
        self.calls.append("stream")
        self.request = request
        return self.open_next()

    def follow(self, request_id, *, after_sequence):
        self.calls.append(f"follow {request_id} after {after_sequence}")
        return self.open_next()

    def open_next(self):
        for item in self.streams.pop(0) if len(self.streams) > 1 else self.streams[0]:
            if isinstance(item, Exception):
                raise item
            event = event_pb2.ExecutionEvent()
            event.CopyFrom(item)
            yield event


def state(sequence):
    return event_pb2.ExecutionEvent(sequence=sequence, transition=event_pb2.LifecycleTransition())


def text(words, sequence):
    return event_pb2.ExecutionEvent(sequence=sequence, content_delta=event_pb2.ContentDelta(text=words))


def end(sequence, content):
    response = execution_pb2.SystemResponse(content=content)
    return event_pb2.ExecutionEvent(sequence=sequence, completed=event_pb2.Completed(response=response))
