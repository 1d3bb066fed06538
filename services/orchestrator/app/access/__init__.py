"""Authentication, policies and the audit log."""
