"""Engines that are reached over HTTP."""
