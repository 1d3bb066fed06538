"""Metadata keys and the domain of errors: names that both ends of a call must agree on."""

from __future__ import annotations

from typing import Final

REQUEST_ID_KEY: Final = "x-request-id"
SESSION_ID_KEY: Final = "x-session-id"
STEP_NAME_KEY: Final = "x-step-name-bin"
CAUSED_BY_KEY: Final = "x-caused-by-bin"

ERROR_DOMAIN: Final = "pagantic"
