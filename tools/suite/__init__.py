"""Checks of a running server, and the campaign that runs them on one server after another."""
