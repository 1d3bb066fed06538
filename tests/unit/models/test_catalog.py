"""The catalog: its models are whole, and a name that is not in it leads to those that are near."""

import pytest

from pagantic_common.domain.errors import ErrorCode, NotFound
from pagantic_common.models.catalog import catalog, find_in_catalog
from pagantic_common.models.folder import check_name


@pytest.mark.parametrize("name", catalog())
def test_the_parts_of_a_model_are_its_whole(name):
    model = find_in_catalog(name)
    check_name(name)
    assert sum(model.bytes_of(part) for part in range(1, model.parts + 1)) == model.size_bytes
    assert model.bytes_of(model.parts) > 0
    assert len({model.requirement(part) for part in range(1, model.parts + 1)}) == model.parts


@pytest.mark.parametrize(
    ("name", "near"),
    [("smollm2", "smollm2:135m"), ("qwen2.5-codr:0.5b", "qwen2.5-coder:0.5b"), ("qwen", "or qwen2.5-coder:1.5b")],
)
def test_an_unknown_name_is_answered_with_near_ones(name, near):
    with pytest.raises(NotFound, match=f"did you mean .*{near}") as refused:
        find_in_catalog(name)
    assert refused.value.code is ErrorCode.CONFIG_MODEL_NOT_FOUND


def test_a_name_like_no_other_is_answered_with_all():
    with pytest.raises(NotFound) as refused:
        find_in_catalog("zzzzzz")
    assert all(name in str(refused.value) for name in catalog())
