"""Synchronous methods without compression: every round waits for all workers."""
