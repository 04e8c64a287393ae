"""Methods that send compressed gradients through servers or around a ring."""
