"""Defines the interface of guards, and redacts their findings while text streams."""
