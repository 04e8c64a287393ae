"""Mechanisms that several methods share."""
