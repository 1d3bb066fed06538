"""Carries out the commands of a run, with one function (an effect) for each type of command."""
