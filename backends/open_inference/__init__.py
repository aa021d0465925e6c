"""Calls servers that speak the Open Inference Protocol v2, such as Triton, KServe and MLServer."""
