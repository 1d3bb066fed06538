"""Authentication, rate limits and policies for callers."""
