"""The terminal program that `pagantic` alone opens: conversations, their answers as they are written, and timelines."""
