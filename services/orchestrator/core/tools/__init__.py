"""Which tools may be called with which arguments: policies, taint and approvals."""
