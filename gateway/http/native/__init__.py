"""The native paths: executions in the form of the contract, their approvals, the console, and probes."""
