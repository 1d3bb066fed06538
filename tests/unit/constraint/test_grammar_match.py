from pagantic_common.grammar.engine_text import engine_text_of_gbnf
from services.constraint.core.grammars import derives


def test_the_whole_text_must_be_derived():
    engine_text = engine_text_of_gbnf('root ::= ("é" "\\n"?){1,200}')
    assert derives(engine_text, "é\n" * 100)
    assert not derives(engine_text, "")
    assert not derives(engine_text, "éx")
    assert not derives(engine_text, "é" * 201)


def test_long_text_is_matched():
    assert derives(engine_text_of_gbnf('root ::= "a"*'), "a" * 20_000)
