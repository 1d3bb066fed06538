"""Names of the conventions are those of their own package."""

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as package

from pagantic_common.telemetry import genai, names
from tests.support.conventions import known_attributes, known_metrics

OWN = ("pagantic", "x-", "inference.", "grpc.server.call.duration")


def constants_of(module, prefix=""):
    return {value for name, value in vars(module).items() if name.isupper() and str(value).startswith(prefix)}


def test_every_name_of_the_conventions_is_one_of_their_package():
    used = constants_of(genai, "gen_ai.")
    assert len(used) > 30
    assert used <= known_attributes() | known_metrics()


def test_every_other_dotted_name_of_a_span_or_metric_is_one_of_the_package_or_our_own():
    dotted = {value for value in constants_of(names) if "." in value and not value.startswith(OWN)}
    assert {"http.server.request.duration", "error.type"} <= dotted
    assert dotted <= known_attributes() | known_metrics()


def test_every_operation_but_our_own_is_one_of_the_conventions():
    known = {one.value for one in package.GenAiOperationNameValues}
    assert {one.value for one in genai.Operation} - known == {"decide"}
    assert {one.value for one in genai.TokenType} == {one.value for one in package.GenAiTokenTypeValues}
