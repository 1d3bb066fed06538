"""The calibrations of decisions in a folder, `<name>.json` as `pagantic fit` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import is_id
from pagantic_common.domain.text.calibration import LabelCalibration

SUFFIX = ".json"
_CALIBRATION: TypeAdapter[LabelCalibration] = TypeAdapter(LabelCalibration)


def read_calibrations(folder: Path | None) -> Mapping[str, LabelCalibration]:
    """Return the calibrations of a folder by name; raises InvalidRequest with the name of an unusable folder or file.

    Files with other suffixes and hidden files are ignored.
    """
    if folder is None:
        return {}
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise InvalidRequest(f"the calibration folder {str(folder)!r} cannot be read: {error.strerror}") from None
    files = [path for path in paths if path.suffix == SUFFIX and not path.name.startswith(".") and path.is_file()]
    return {path.stem: _read(path) for path in files}


def _read(path: Path) -> LabelCalibration:
    problem = "its name does not match [A-Za-z0-9._:-]{1,128}"
    if is_id(path.stem):
        try:
            return _CALIBRATION.validate_json(path.read_bytes())
        except OSError as error:
            problem = error.strerror or str(error)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            problem = f"{first['loc']}: {first['msg']}"
    raise InvalidRequest(f"the calibration {path.name!r} cannot be used: {problem}")
