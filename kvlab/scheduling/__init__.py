"""Who runs in the next step: no tensors, so that the engine and the simulator share it."""
