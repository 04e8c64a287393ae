"""Methods in which nobody waits, and what they share: arrivals and given delays."""
