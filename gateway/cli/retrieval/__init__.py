"""Commands that answer from collections of documents."""
