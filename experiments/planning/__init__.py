"""Predictions of seconds to a target on clusters, from runs without a network."""
