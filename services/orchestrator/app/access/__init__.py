"""Authenticates callers, restricts tenants by policies, and keeps the audit log."""
