from pagantic_common.domain.messages import Message, Role
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.execution.events import AttemptDiscarded, Completed
from services.orchestrator.core.model.request import Mode, Request, SystemPrompt
from services.orchestrator.core.model.response import Response
from services.orchestrator.core.text_size import text_size


def test_the_texts_of_a_value_count_however_deep_they_are():
    assert text_size(AttemptDiscarded(1, "reason")) == 6
    assert text_size(Completed(Response("r", "s", content="hello"))) - text_size(Completed(Response("r", "s"))) == 5
    said = tuple(Message(Role.USER, "x" * 100) for _ in range(3))
    assert text_size((Prepared(system_prompt="y" * 7, history=said),)) - text_size((Prepared(),)) == 307
    work = Request("r", Mode.CHAT, said, prompt=SystemPrompt("z" * 10, (("name", ("rule",)),)))
    assert 300 + 10 + 8 <= text_size(work) <= 300 + 10 + 8 + 100
    assert text_size({"a": [1, "bc", None, 2.0]}) == 3
