"""Scenes: pure functions from replayed state (and a frame's events) to a drawing, one file each."""
