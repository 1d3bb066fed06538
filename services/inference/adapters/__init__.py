"""Implements the ports with llama.cpp, llguidance, jinja2, folders and HTTP."""
