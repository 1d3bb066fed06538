"""The client's methods for stored conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import session_pb2
from pagantic_common.client.stored.executions import Executions
from pagantic_common.domain.text.json_text import dump_json


class Sessions(Executions):
    """Reads and changes conversations."""

    async def update_session(
        self,
        session_id: str,
        values: Mapping[str, Any],
        *,
        removed: Sequence[str] = (),
        appended: Sequence[message_pb2.Message] = (),
        replaced: Mapping[int, message_pb2.Message] = MappingProxyType({}),
    ) -> session_pb2.Session:
        """Set values of a session, given as JSON-serializable objects, remove values, and append and replace messages.

        The keys of `replaced` are positions in the conversation, from 0. Returns the session without its messages.
        Raises Aborted if messages are appended or replaced while a turn of the session runs.
        """
        texts = {key: dump_json(value) for key, value in values.items()}
        request = pb.UpdateSessionRequest(
            session_id=session_id,
            state_json=texts,
            removed_keys=removed,
            appended_messages=appended,
            replaced_messages=replaced,
        )
        return await self.change_session(request)

    async def change_session(self, request: pb.UpdateSessionRequest) -> session_pb2.Session:
        """Change a session, with protobuf messages as argument and result. The result has no messages."""
        return (await self._call(self._stub().UpdateSession, request)).session

    async def get_session(self, session_id: str) -> session_pb2.Session:
        """Return a stored conversation with all its messages. Raises NotFound if it does not exist.

        A long conversation takes much memory. `get_session_page` reads a part of it.
        """
        pages: list[session_pb2.Session] = []
        before = 0
        while not pages or before:
            page = await self.get_session_page(pb.GetSessionRequest(session_id=session_id, before_position=before))
            pages.append(page)
            before = page.first_position
        session = pages.pop()  # The last page has the oldest messages.
        for page in reversed(pages):
            session.messages.extend(page.messages)
        return session

    async def list_sessions(self) -> list[session_pb2.Session]:
        """Return all stored conversations without their messages, the most recently used first."""
        sessions: list[session_pb2.Session] = []
        token = ""
        while True:
            page = await self.list_sessions_page(pb.ListSessionsRequest(page_token=token))
            sessions += page.sessions
            if not (token := page.next_page_token):
                return sessions

    async def list_sessions_page(self, request: pb.ListSessionsRequest) -> pb.ListSessionsResponse:
        """Return a page of stored conversations without their messages, the most recently used first."""
        return await self._call(self._stub().ListSessions, request)

    async def get_session_page(self, request: pb.GetSessionRequest) -> session_pb2.Session:
        """Return a stored conversation with a page of its newest messages. Raises NotFound if it does not exist."""
        return (await self._call(self._stub().GetSession, request)).session

    async def delete_session(self, session_id: str) -> None:
        """Remove a stored conversation. Raises NotFound if it does not exist."""
        request = pb.DeleteSessionRequest(session_id=session_id)
        await self._call(self._stub().DeleteSession, request)
