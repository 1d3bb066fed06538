"""Without the package that runs models, the service says what to install in place of a traceback."""

import pytest

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from services.inference import __main__ as program
from services.inference.settings import InferenceSettings


async def test_a_missing_engine_is_named_with_what_brings_it(monkeypatch):
    monkeypatch.setattr(program, "find_spec", lambda _name: None)
    with pytest.raises(PreconditionFailed, match=r"pip install 'pagantic\[server,engine\]'") as failed:
        async with program.open_app(InferenceSettings()):
            pass
    assert failed.value.code is ErrorCode.CONFIG_NO_ENGINE
