"""The terminal program's model of answers, conversations and requests, which draws nothing."""
