"""The settings of pulled models."""

import pytest
from pydantic import ValidationError

from pagantic_common.models.settings import ModelSettings


def test_a_folder_that_cannot_be_is_told_before_anything_is_pulled():
    with pytest.raises(ValidationError, match="PAGANTIC_MODELS_FOLDER is '~nobody-of-that-name/models'"):
        ModelSettings(folder="~nobody-of-that-name/models")
    assert ModelSettings().folder == ""
