"""The policies under a modelled clock: the same objects as the engine's, without tensors."""
