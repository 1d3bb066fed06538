"""The bound of an expression's steps: the library cannot be stopped, and holds the interpreter's lock."""

import pytest

from pagantic_common.grammar.expressions import MAX_STEPS, Expression, ExpressionError

NUMBERS = [1.0] * 7900
ITEMS = [{"a": 1.0, "b": 2.0, "sum": 3.0}] * 50


def doubled(times, chained):
    return "['aaaaaaaaaa']" + f".map(x, {' + '.join(['x'] * times)})" * chained + ".size() == 1"


@pytest.mark.parametrize(
    "text",
    [
        f"list.all(x, {'&&'.join(['x>0.0'] * 400)})",
        "list.//\nall(source, list.//\nall(source, source > 0.0))",
        "list.all // it's\n(x, list.all(y, x > y)) // '",
        r"'''\'''' == '' || list.all(x, list.all(y, x > y)) // '",
        "list.existsOne(x, list.existsOne(y, x > y))",
        doubled(100, 3),
        doubled(2, 90),
        "list.map(x, list)",
        "[1, 2].all(x, list.all(y, x // .all(z\n, y > 0.0))",
        "list.all(x, 'a'.matches('((a{9}){9}){9}'))",
        "list.map(x, x)",
        "list.filter(x, true)",
        "list.all(x, x in list)",
        "list.all(x, list + list != [])",
        f"list{' + list' * 300} == []",
        f"[1].map(x, [{','.join('x' * 300)}]).map(x, [{','.join('x' * 300)}]) == []",
    ],
)
def test_loops_and_sums_that_may_take_too_long_are_not_evaluated(text):
    with pytest.raises(ExpressionError, match=f"may take more than {MAX_STEPS} steps"):
        Expression(text).evaluate({"list": NUMBERS})


@pytest.mark.parametrize(
    "text",
    [
        "few.all(x, x > 0.0 && x < 2.0) && size(few) == 1000",
        "items.all(i, items.filter(j, j.a == i.a).size() == 50)",
        "items.all(i, source.matches('^[A-Z]?'))",
        "items.all(i, i.a + i.b == i.sum) && items.exists(i, i.a < limit)",
        "items.all(i, items.exists(j, j.a == i.a))",
        "items.map(i, i.a).size() == 50",
        "1.0 in few // it's .all( here",
        "1.0 in list",
        "source + '.all(' == 'a.all('",
        r"""'''it\'''' == "it'" && source.size() == 1""",
    ],
)
def test_other_loops_and_sums_are_evaluated(text):
    given = {"list": NUMBERS, "few": NUMBERS[:1000], "items": ITEMS, "source": "a", "limit": 2.0}
    expression = Expression(text)
    assert expression.evaluate({name: given[name] for name in expression.names}) is True


def test_commas_that_a_comment_makes_look_like_those_of_loops_hide_no_copies():
    copies = ",".join(["x // .all(x\n"] * 40)
    with pytest.raises(ExpressionError, match=f"may take more than {MAX_STEPS} steps"):
        Expression(f"[1].map(x, [{copies}]).map(x, [{copies}]) == []").evaluate({})
