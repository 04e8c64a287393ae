"""Verification that a method satisfies the interface contract, by running it."""
