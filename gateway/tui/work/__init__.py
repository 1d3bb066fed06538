"""What the terminal program knows of answers, conversations and requests. It draws nothing."""
