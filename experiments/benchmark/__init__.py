"""What operations cost, next to the least that they can cost."""
