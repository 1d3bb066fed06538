"""Stores the KV cells of prompts that come again outside the process, and brings them back."""
