"""Methods that compress as the bandwidth allows."""
