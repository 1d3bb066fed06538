"""The engine's wheel in the cache."""

from deploy.local.engine_wheel import find_built


def test_a_wheel_that_is_not_what_was_built_is_built_again(tmp_path):
    assert find_built(tmp_path) is None
    wheel = tmp_path / "llama_cpp_python-1.0-py3-none-any.whl"
    wheel.write_bytes(b"built")
    assert find_built(tmp_path) == wheel
    assert find_built(tmp_path) == wheel
    wheel.write_bytes(b"other")
    assert find_built(tmp_path) is None
    assert not wheel.exists()
