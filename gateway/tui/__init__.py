"""The terminal program that `pagantic` without arguments opens: conversations, streamed answers, and timelines."""
