"""An orchestrator whose journal is encrypted: what callers say and get is in no file."""

import base64

from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.rpc.call import call_unary
from services.orchestrator.adapters.journal.sealing import read_journal_keys
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from tests.support.orchestrator_app import execute, journal_url, orchestrator, system_request, timeline
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

ASKED, SAID = "the harbour of Lindau", "it opens at nine"


async def test_what_is_asked_and_answered_is_in_no_file(tmp_path):
    folder, key_file = tmp_path / "journal", tmp_path / "keys"
    folder.mkdir()
    key_file.write_bytes(base64.b64encode(bytes(32)))
    services = scripted_services(inference=ScriptedInference(answer(SAID), answer(SAID)))
    journal = SqlJournal(journal_url(folder), sealing=read_journal_keys(key_file))
    async with orchestrator(folder, services, journal=journal) as stub:
        for request_id in ("a", "b"):
            await execute(stub, system_request(ASKED, request_id=request_id, session_id="s"))
        session = (await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))).session
        assert [message.content for message in session.messages] == [ASKED, SAID] * 2
        assert await timeline(stub, "a")
        stored = b"".join(path.read_bytes() for path in folder.iterdir())
    for text in (ASKED, SAID):
        assert text.encode() not in stored
