"""The client's methods for executions, both running and ended."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pagantic.orchestrator.v1 import execution_pb2, usage_total_pb2, wait_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client.hints import one_of, several
from pagantic_common.client.stored.approvals import Approvals
from pagantic_common.domain.text.json_text import dump_json

if TYPE_CHECKING:
    from pagantic_common.client.notebook.timeline import Timeline

_USAGE_KEY = "USAGE_KEY_"
USAGE_KEYS = tuple(name.removeprefix(_USAGE_KEY).lower() for name, number in usage_total_pb2.UsageKey.items() if number)


class Executions(Approvals):
    """Reads, cancels, resumes and changes executions."""

    async def timeline(self, request_id: str) -> Timeline:
        """Return the stored events of an execution, in sequence."""
        from pagantic_common.client.notebook.timeline import Timeline  # noqa: PLC0415 - it draws with rich

        events = Timeline()
        after = 0
        while True:
            page = await self.timeline_page(pb.GetTimelineRequest(request_id=request_id, after_sequence=after))
            events += page.events
            if not (after := page.next_after_sequence):
                return events

    async def timeline_page(self, request: pb.GetTimelineRequest) -> pb.GetTimelineResponse:
        """Return a page of the stored events of an execution, in sequence."""
        return await self._call(self._stub().GetTimeline, request)

    async def list_steps(self, request_id: str) -> list[execution_pb2.ExecutionStep]:
        """Return the results of the steps of an execution, in order.

        Raises NotFound if the execution does not exist, and PreconditionFailed if its request is not kept.
        """
        steps: list[execution_pb2.ExecutionStep] = []
        token = ""
        while True:
            page = await self.list_steps_page(pb.ListStepsRequest(request_id=request_id, page_token=token))
            steps += page.steps
            if not (token := page.next_page_token):
                return steps

    async def list_steps_page(self, request: pb.ListStepsRequest) -> pb.ListStepsResponse:
        """Return a page of the results of the steps of an execution, in order.

        Raises NotFound if the execution does not exist, and PreconditionFailed if its request is not kept.
        """
        return await self._call(self._stub().ListSteps, request)

    async def get_execution(self, request_id: str) -> execution_pb2.Execution:
        """Return an execution with its current state. Raises NotFound if it does not exist."""
        request = pb.GetExecutionRequest(request_id=request_id)
        return (await self._call(self._stub().GetExecution, request)).execution

    async def cancel(
        self, request_id: str, *, timeout_s: float | None = None
    ) -> execution_pb2.LifecycleState.ValueType:
        """Cancel an execution and return its final state. Raises NotFound if it does not exist.

        Args:
            request_id: Id of the execution.
            timeout_s: Maximum time for the call, in seconds; None selects the client's timeout.
        """
        request = pb.CancelExecutionRequest(request_id=request_id)
        return (await self._call(self._stub().CancelExecution, request, timeout_s)).state

    async def resume(self, request_id: str) -> execution_pb2.LifecycleState.ValueType:
        """Resume an interrupted execution, and return the state that it continues from.

        Raises NotFound if the execution does not exist, and PreconditionFailed if it is not interrupted.
        """
        request = pb.ResumeExecutionRequest(request_id=request_id)
        return (await self._call(self._stub().ResumeExecution, request)).state

    async def signal(self, request_id: str, name: str, payload: Any = None, *, signal_id: str = "") -> str:
        """Send a signal to an execution, and return the id of the signal.

        The step that waits for the name takes the payload; until then the signal is kept. With the same `signal_id`, a
        signal may be sent again. Raises NotFound if the execution does not exist, PreconditionFailed if it has ended,
        InvalidRequest if the payload violates the step's schema, and Overloaded if too many signals are kept.
        """
        request = pb.SignalExecutionRequest(
            request_id=request_id, name=name, payload_json=dump_json(payload), signal_id=signal_id or str(uuid.uuid4())
        )
        return await self.send_signal(request)

    async def send_signal(self, request: pb.SignalExecutionRequest) -> str:
        """Send a signal to an execution, and return the id of the signal."""
        return (await self._call(self._stub().SignalExecution, request)).signal_id

    async def list_waits(self, *, request_id: str = "") -> list[wait_pb2.Wait]:
        """Return the open waits of one or all executions, the oldest first."""
        waits: list[wait_pb2.Wait] = []
        token = ""
        while True:
            page = await self.list_waits_page(pb.ListWaitsRequest(request_id=request_id, page_token=token))
            waits += page.waits
            if not (token := page.next_page_token):
                return waits

    async def list_waits_page(self, request: pb.ListWaitsRequest) -> pb.ListWaitsResponse:
        """Return a page of open waits."""
        return await self._call(self._stub().ListWaits, request)

    async def get_usage(
        self, *, session_id: str = "", model: str = "", subject: str = "", group_by: Sequence[str] = ()
    ) -> list[usage_total_pb2.UsageTotal]:
        """Return the usage and cost of ended executions by session, model and subject. An empty filter matches all.

        `group_by` names other keys of the totals: "session", "model", "subject" and "tenant"; the rest is summed. With
        only the tenant, there is a single total.
        """
        keys = [
            usage_total_pb2.UsageKey.Value(_USAGE_KEY + one_of("group_by", key, USAGE_KEYS).upper())
            for key in several("group_by", group_by)
        ]
        totals: list[usage_total_pb2.UsageTotal] = []
        token = ""
        while True:
            request = pb.GetUsageRequest(
                session_id=session_id, model=model, subject=subject, group_by=keys, page_token=token
            )
            page = await self._call(self._stub().GetUsage, request)
            totals += page.totals
            if not (token := page.next_page_token):
                return totals

    async def list_executions(
        self,
        *,
        session_id: str = "",
        state: execution_pb2.LifecycleState.ValueType = execution_pb2.LIFECYCLE_STATE_UNSPECIFIED,
        metadata: Mapping[str, str] | None = None,
        mode: execution_pb2.Mode.ValueType = execution_pb2.MODE_UNSPECIFIED,
        limit: int = 100,
    ) -> list[execution_pb2.Execution]:
        """Return executions without their responses, the newest first. An empty filter matches all.

        With `metadata`, an execution matches only if it has every given entry.
        """
        executions: list[execution_pb2.Execution] = []
        token = ""
        while len(executions) < limit:
            request = pb.ListExecutionsRequest(
                page_size=min(100, limit - len(executions)),
                page_token=token,
                session_id=session_id,
                state=state,
                metadata=metadata,
                mode=mode,
            )
            page = await self.list_executions_page(request)
            executions += page.executions
            if not (token := page.next_page_token):
                break
        return executions

    async def list_executions_page(self, request: pb.ListExecutionsRequest) -> pb.ListExecutionsResponse:
        """Return a page of executions without their responses, the newest first."""
        return await self._call(self._stub().ListExecutions, request)

    async def update_execution(
        self, request_id: str, metadata: Mapping[str, str], *, removed: Sequence[str] = ()
    ) -> execution_pb2.Execution:
        """Set and remove metadata of an execution whose request is kept, and return the execution.

        Raises NotFound if the execution does not exist, and PreconditionFailed if its request is not kept.
        """
        request = pb.UpdateExecutionRequest(request_id=request_id, metadata=metadata, removed_keys=removed)
        return (await self._call(self._stub().UpdateExecution, request)).execution

    async def delete_execution(self, request_id: str) -> None:
        """Delete an execution. Raises NotFound if it does not exist, and PreconditionFailed if it is running."""
        await self._call(self._stub().DeleteExecution, pb.DeleteExecutionRequest(request_id=request_id))
