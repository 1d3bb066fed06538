import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from services.constraint.adapters.grammar_folder import GrammarFolder


def test_grammars_are_named_by_file(tmp_path):
    (tmp_path / "yes-no.gbnf").write_text('root ::= "yes" | "no"')
    grammars = GrammarFolder(tmp_path)
    assert grammars.read("yes-no").startswith("root")
    for name in ("other", "../yes-no", ""):
        with pytest.raises(InvalidRequest) as caught:
            grammars.read(name)
        assert caught.value.code is ErrorCode.CONFIG_GRAMMAR_NOT_FOUND


def test_wrong_folder_or_file_is_found_at_start(tmp_path):
    with pytest.raises(InvalidRequest, match="not a folder"):
        GrammarFolder(tmp_path / "missing")
    (tmp_path / "bad.gbnf").write_text("start ::= x")
    with pytest.raises(InvalidRequest, match=r"'bad\.gbnf' cannot be used"):
        GrammarFolder(tmp_path)
