"""The calibrations of decisions in a folder, `<name>.json` as `pagantic fit` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import is_id
from pagantic_common.domain.text.calibration import MAX_SCALING, Calibration, LabelCalibration
from pagantic_common.domain.text.isotonic import Curve
from pagantic_common.storage.json_file import read_json_file

SUFFIX = ".json"
CALIBRATIONS = "the calibration"


Scaling = Annotated[float, Field(ge=-MAX_SCALING, le=MAX_SCALING, allow_inf_nan=False)]


class _Line(BaseModel):
    """A line through log-odds."""

    model_config = ConfigDict(extra="forbid")

    slope: Scaling
    intercept: Scaling


def _kind_of(value: Any) -> str:
    return "curve" if isinstance(value, dict) and "log_odds" in value else "line"


class _File(BaseModel):
    """The content of a calibration file, as `pagantic fit` writes it."""

    model: str
    maps: dict[str, Annotated[Annotated[_Line, Tag("line")] | Annotated[Curve, Tag("curve")], Discriminator(_kind_of)]]

    def calibration(self) -> LabelCalibration:
        """Return the calibration."""
        maps = {
            answer: Calibration(read.slope, read.intercept) if isinstance(read, _Line) else read
            for answer, read in self.maps.items()
        }
        return LabelCalibration(self.model, maps)


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
    for path in files:
        if not is_id(path.stem):
            raise InvalidRequest(f"{CALIBRATIONS} {str(path)!r}: its name does not match [A-Za-z0-9._:-]{{1,128}}")
    return {path.stem: read_json_file(path, _File, CALIBRATIONS).calibration() for path in files}
