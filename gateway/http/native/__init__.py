"""Our own paths: executions as the contract has them, the approvals that they wait for, their console, and probes."""
