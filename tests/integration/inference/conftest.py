import pytest

from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from pagantic_common.testing.server import serving
from tests.support.inference_app import registration_of


@pytest.fixture
async def stub_of():
    """Gives a function that serves models and returns a stub; they are closed at the end."""
    opened = []

    async def serve(models):
        context = serving([registration_of(models)])
        channel, _address = await context.__aenter__()
        opened.append((context, models))
        return rpc.InferenceServiceStub(channel)

    yield serve
    for context, models in opened:
        await context.__aexit__(None, None, None)
        await models.close()
