"""Implements the Open Inference Protocol v2, which Triton and KServe speak.

`tensors`, `task_tensors`, `calls` and `models` are independent of the transport. The other modules
serve HTTP.
"""
