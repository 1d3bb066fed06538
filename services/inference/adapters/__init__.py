"""llama.cpp, llguidance and jinja2 behind the ports."""
