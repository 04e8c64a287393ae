"""What runs: the compiled loop and who drives it, sweeps, the clock, histories, checkpoints, and compiled programs."""
