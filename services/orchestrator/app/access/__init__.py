"""Authentication, policies and audit."""
