"""Plans: which method, with which settings, is the fastest on a cluster."""
