"""Devices: where tensors live, and how their time, memory and bandwidth are measured.

`choose.get_device` gives one. Nothing is imported here, so that the parts without torch can be had without it.
"""
