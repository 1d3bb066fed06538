"""The terminal program's model of answers, conversations and requests. It draws nothing."""
