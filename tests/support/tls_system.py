"""A real system whose services connect with TLS, each with a certificate of its own."""

from pagantic_common.rpc.access.tls.renewed_channel import open_service_channel
from pagantic_common.settings import InnerSettings
from tests.e2e.conftest import AREAS, System
from tests.support.certificates import PREFIX, TlsFiles, Turnover
from tests.support.live_requests import COLLECTION

MAX_BYTES = 4 * 1024 * 1024


class TlsSystem(System):
    """The running services; commands show the operator's certificate."""

    def __init__(self, state):
        super().__init__(state)
        files = {name: TlsFiles(state / "tls" / name) for name in (*AREAS, "operator")}
        self.operator = files["operator"]
        self.turnover = Turnover({PREFIX + name: own for name, own in files.items()})
        self.environment |= self.operator.environment
        for area in AREAS:
            named = files[area].settings.items()
            self.environment |= {f"PAGANTIC_{area.upper()}_{name.upper()}": str(value) for name, value in named}

    def ingest(self):
        """Store what honest requests retrieve."""
        text = self.state / "sea.txt"
        text.write_text("The sea is wide and blue.")
        self.run("pagantic", "ingest", COLLECTION, text)

    def channel(self, area="orchestrator"):
        """Return a channel for asyncio that shows the operator's newest certificate."""
        return open_service_channel(self.address(area), InnerSettings(port=0, **self.operator.settings))
