"""llama.cpp, llguidance, jinja2, folders and HTTP behind the ports."""
