"""Work on grammars: what is listed of them is bounded."""

from services.constraint.core.grammars import MAX_PROBLEMS
from services.constraint.core.model import Limits
from services.constraint.core.work import Work

WORK = Work(Limits(max_schema_bytes=262_144, max_schema_depth=20, max_output_bytes=1000))


def test_the_warnings_and_problems_of_a_grammar_are_listed_up_to_a_number():
    unreachable = "\n".join(f'r{number} ::= "a"' for number in range(5000))
    report = WORK.check_grammar(f'root ::= "a"\n{unreachable}', None)
    assert not report.problems
    assert len(report.warnings) == MAX_PROBLEMS + 1
    assert report.warnings[-1].message == "4900 more are not listed"
    undefined = " ".join(f"r{number}" for number in range(5000))
    assert 0 < len(WORK.check_grammar(f"root ::= {undefined}", None).problems) <= MAX_PROBLEMS
    few = WORK.check_grammar('root ::= "a"\nr ::= "a"', None)
    assert len(few.warnings) == 1
