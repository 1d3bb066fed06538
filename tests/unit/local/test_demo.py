"""What the demo does after its requests."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace

from deploy.local import record
from deploy.local.demo import serve_until_stopped


def test_the_demo_ends_when_another_command_has_stopped_the_services(tmp_path, capsys):
    supervisor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record.save(tmp_path, supervisor.pid, (), {}, is_host=False)
    serving = threading.Thread(target=serve_until_stopped, args=(SimpleNamespace(state=tmp_path),), daemon=True)
    serving.start()
    serving.join(0.2)
    assert serving.is_alive()
    supervisor.communicate(b"\n")
    serving.join(30)
    assert not serving.is_alive()
    assert "stopped by another command" in capsys.readouterr().out
