"""Measures costs of operations, next to lower bounds."""
