"""Implements the Open Inference Protocol v2, the protocol of Triton and KServe.

`tensors`, `task_tensors`, `calls` and `models` do not depend on the transport (HTTP or gRPC). The
other modules serve HTTP.
"""
