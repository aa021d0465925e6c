"""Answers the Open Inference Protocol v2, of Triton and KServe.

`tensors`, `task_tensors`, `calls` and `models` know no transport; others are of HTTP.
"""
