"""What things cost, beside the least that they can."""
