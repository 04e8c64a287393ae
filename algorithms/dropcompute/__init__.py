"""DropCompute: synchronous training that drops the stragglers' last micro-batches. The method is `algorithms.drop_compute`; here is what
it is planned with."""
