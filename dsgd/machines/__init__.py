"""Real processes: a family of them on this machine, and what each of them does as a worker."""
