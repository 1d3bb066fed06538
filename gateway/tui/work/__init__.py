"""The terminal program's model of answers, conversations and requests, without any drawing."""
