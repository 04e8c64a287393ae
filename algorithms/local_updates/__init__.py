"""Methods with local steps between synchronizations: each worker makes H steps on its own model."""
