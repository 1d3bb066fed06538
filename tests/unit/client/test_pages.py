"""The client follows pages to their end."""

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import event_pb2, session_pb2, usage_total_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client import Client
from tests.unit.client.scripted_orchestrator import ScriptedOrchestrator, serving


class Paged(ScriptedOrchestrator):
    """Gives one item per page."""

    async def GetTimeline(self, request, _context):
        sequence = request.after_sequence + 1
        event = event_pb2.ExecutionEvent(sequence=sequence)
        return pb.GetTimelineResponse(events=[event], next_after_sequence=sequence if sequence < 3 else 0)

    async def GetSession(self, request, _context):
        position = (request.before_position or 3) - 1
        said = message_pb2.Message(role=message_pb2.ROLE_USER, content=f"{position}")
        return pb.GetSessionResponse(
            session=session_pb2.Session(session_id="a", messages=[said], first_position=position)
        )

    async def GetUsage(self, request, _context):
        number = int(request.page_token or "0")
        total = usage_total_pb2.UsageTotal(session_id=request.session_id, model=f"m{number}")
        return pb.GetUsageResponse(totals=[total], next_page_token=f"{number + 1}" if number < 2 else "")


def test_what_comes_in_pages_is_returned_whole_and_in_order():
    with serving(Paged()) as address, Client(address) as client:
        assert [event.sequence for event in client.timeline("r")] == [1, 2, 3]
        session = client.get_session("a")
        assert [message.content for message in session.messages] == ["0", "1", "2"]
        assert session.first_position == 0
        assert [total.model for total in client.get_usage(session_id="s")] == ["m0", "m1", "m2"]
