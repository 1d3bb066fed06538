"""The parts of the terminal program's screen."""
