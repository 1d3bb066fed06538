from itertools import count

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.grammar.engine_text import engine_text_of_gbnf
from services.constraint.adapters.byte_matcher import ByteMatcher
from services.constraint.adapters.grammar_folder import GrammarFolder


def test_matcher_wants_the_whole_text():
    matcher = ByteMatcher(lambda: 0.0, 1.0)
    engine_text = engine_text_of_gbnf('root ::= ("é" "\\n"?){1,200}')
    assert matcher.matches(engine_text, "é\n" * 100)
    assert not matcher.matches(engine_text, "")
    assert not matcher.matches(engine_text, "éx")
    assert not matcher.matches(engine_text, "é" * 201)


def test_matching_that_takes_too_long_is_refused():
    ticks = count()
    matcher = ByteMatcher(lambda: float(next(ticks)), 1.0)
    with pytest.raises(InvalidRequest) as caught:
        matcher.matches(engine_text_of_gbnf('root ::= "a"*'), "a" * 1000)
    assert caught.value.code is ErrorCode.CONSTRAINT_TOO_COMPLEX


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
